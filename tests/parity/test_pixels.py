"""Resized, cropped and reduced pixels, compared with Pillow and timm."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

from tests.parity.conftest import timm
from vitrail.data.decode import decode_image
from vitrail.data.resize import resize
from vitrail.data.transform import Preprocess

EXACT = ("nearest", "lanczos", "box", "hamming")  # Pillow's own
FAST = ("bilinear", "bicubic")  # PyTorch's


def scene(rows: int, columns: int) -> np.ndarray:
    """An image like a photo: soft shapes with hard edges, and grain."""
    random = np.random.default_rng(rows * 10_000 + columns)
    soft = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((columns, rows), Image.BICUBIC)
    pixels = np.array(soft, dtype=np.int16)
    for _ in range(12):
        top, left = random.integers(rows), random.integers(columns)
        pixels[top : top + rows // 5, left : left + columns // 5] = random.integers(0, 256, 3)
    grain = random.normal(0, 6, (500, 500, 3)).astype(np.int16)
    pixels += np.tile(grain, (rows // 500 + 1, columns // 500 + 1, 1))[:rows, :columns]
    return np.clip(pixels, 0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, *, orientation: int = 1, quality: int = 90, subsampling: str = "4:2:0") -> bytes:
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling=subsampling, exif=exif)
    return file.getvalue()


def difference(ours: np.ndarray, theirs: np.ndarray | Image.Image) -> np.ndarray:
    ours, theirs = np.asarray(ours, dtype=int), np.asarray(theirs, dtype=int)
    assert ours.shape == theirs.shape
    return np.abs(ours - theirs)


def random_sizes(num: int, seed: int = 0) -> list[tuple[int, int]]:
    return [tuple(size) for size in np.random.default_rng(seed).integers(1, 500, (num, 2)).tolist()]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kernel", EXACT)
def test_other_kernels_match_pillow(kernel: str, channels: int) -> None:
    pixels = scene(160, 210)[:, :, :channels]
    image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
    for rows, columns in random_sizes(12):
        theirs = np.asarray(image.resize((columns, rows), Image.Resampling[kernel.upper()])).reshape(
            rows, columns, channels
        )
        assert np.array_equal(resize(np.ascontiguousarray(pixels), rows, columns, kernel), theirs)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kernel", FAST)
def test_columns_then_rows_as_pillow(kernel: str, channels: int) -> None:
    """Columns first, then rows. Pillow since 2026 does tall images the other way round, so here it takes two steps."""
    pixels = np.ascontiguousarray(scene(160, 210)[:, :, :channels])
    image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
    for rows, columns in random_sizes(40):
        theirs = image.resize((columns, image.height), Image.Resampling[kernel.upper()]).resize(
            (columns, rows), Image.Resampling[kernel.upper()]
        )
        apart = difference(resize(pixels, rows, columns, kernel), np.asarray(theirs).reshape(rows, columns, channels))
        assert apart.max() <= 3
        assert apart.mean() < 0.05 or rows * columns < 1000


@pytest.mark.parametrize("kernel", FAST)
def test_any_size_is_less_than_a_step_from_pillow(kernel: str) -> None:
    pixels = scene(160, 210)
    image = Image.fromarray(pixels)
    for rows, columns in random_sizes(40):
        theirs = image.resize((columns, rows), Image.Resampling[kernel.upper()])
        assert difference(resize(pixels, rows, columns, kernel), theirs).mean() < 0.3


def largest_difference(pixels: np.ndarray, kernel: str) -> float:
    """The largest mean difference to Pillow, over sizes with the image's aspect ratio."""
    image, worst = Image.fromarray(pixels), 0.0
    for scale in (0.1, 0.3, 0.45, 0.5, 0.9, 1.1, 1.7):
        rows, columns = (int(side * scale) for side in pixels.shape[:2])
        apart = difference(
            resize(pixels, rows, columns, kernel), image.resize((columns, rows), Image.Resampling[kernel.upper()])
        )
        assert apart.max() <= 2
        worst = max(worst, float(apart.mean()))
    return worst


@pytest.mark.parametrize("kernel", FAST)
def test_resizing_with_the_aspect_ratio_matches_pillow(kernel: str) -> None:
    assert largest_difference(scene(300, 403), kernel) < 0.05


@pytest.mark.data
@pytest.mark.parametrize("kernel", FAST)
def test_resized_photos_match_pillow(kernel: str, data_dir: Path) -> None:
    for path in sorted((data_dir / "photos").glob("*.jpg")):
        worst = largest_difference(decode_image(path.read_bytes()), kernel)
        print(f"{path.name}, {kernel}: at most {worst:.4f} steps of 255 from Pillow")
        assert worst < 0.05


def difference_to_timm() -> Callable[[bytes], np.ndarray]:
    """A function from a file to the difference of our preprocessing for DeiT-Ti to timm's, in steps of 1/255."""
    config = timm.data.resolve_data_config({}, model=timm.create_model("deit_tiny_patch16_224"))
    transform = timm.data.create_transform(**config)
    spec = Preprocess(crop=0.9, mean=config["mean"], std=config["std"])

    def apart(content: bytes) -> np.ndarray:
        with Image.open(io.BytesIO(content)) as image:
            theirs = transform(image.convert("RGB"))
        ours = spec.normalise(spec.resize_and_crop(spec.decode(content))[None])[0]
        return ((ours - theirs).abs() * 255 * torch.tensor(spec.std)[:, None, None]).numpy()

    return apart


def test_any_shape_is_cropped_as_in_timm() -> None:
    """Sizes at which other rounding than timm's would shift the image by a pixel."""
    apart = difference_to_timm()
    for rows, columns in ((224, 224), (248, 248), (249, 250), (300, 451), (333, 500), (375, 499), (20, 33), (352, 263)):
        assert apart(jpeg(scene(rows, columns))).mean() < 0.05, (rows, columns)


@pytest.mark.data
def test_the_evaluation_transform_matches_timm(data_dir: Path) -> None:
    """1,000 images of ImageNet."""
    apart, means, largest = difference_to_timm(), [], 0.0
    with zipfile.ZipFile(data_dir / "imagenet" / "imagenet_val_1000_short256.zip") as archive:
        for name in archive.namelist():
            if name.endswith(".JPEG"):
                steps = apart(archive.read(name))
                means.append(float(steps.mean()))
                largest = max(largest, float(steps.max()))
    print(f"{len(means)} images: {np.mean(means):.4f} steps of 255 from timm, at most {max(means):.4f}, {largest:.1f}")
    assert len(means) == 1000
    assert np.mean(means) < 0.01
    assert max(means) < 0.3  # two are tall: Pillow resizes their rows first


@pytest.fixture
def decoded_sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes at which libjpeg-turbo decodes JPEGs."""
    sizes: list[tuple[int, int]] = []
    decode = simplejpeg.decode_jpeg

    def watched(*words: object, **more: object) -> np.ndarray:
        pixels = decode(*words, **more)
        sizes.append(pixels.shape[:2])
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", watched)
    return sizes


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4"])
@pytest.mark.parametrize(
    ("rows", "columns", "eighths"),
    [
        (1000, 1504, 4),
        (1000, 1500, 4),
        (1001, 1500, 8),  # an odd side has no whole halves
        (1500, 1001, 8),
        (900, 1600, 8),  # would leave less than two pixels per target pixel
        (2000, 3000, 2),
        (2002, 3002, 4),  # halves, but no quarters
        (3000, 2001, 8),
        (4000, 3968, 1),
        (3968, 4000, 1),
        (4000, 3004, 2),  # quarters, but no eighths
    ],
)
def test_reduced_jpegs(rows: int, columns: int, eighths: int, subsampling: str, decoded_sizes: list) -> None:
    """Decoded at a fraction of its size if that divides its sides; the model's pixels hardly differ."""
    spec = Preprocess(crop=0.9)
    content = jpeg(scene(rows, columns), subsampling=subsampling)
    reduced = spec.resize_and_crop(spec.decode(content))
    assert decoded_sizes == [(rows * eighths // 8, columns * eighths // 8)]
    whole = spec.resize_and_crop(decode_image(content))
    assert decoded_sizes[1:] == [(rows, columns)]
    apart = difference(reduced, whole)
    print(f"{columns} x {rows}, {subsampling}, {eighths}/8: {apart.mean():.3f} steps apart, at most {apart.max()}")
    assert apart.mean() < (1 if eighths < 8 else 1e-9)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("rows", "columns"), [(1000, 2000), (1201, 1000)])
def test_rotated_reduced_jpegs(rows: int, columns: int, orientation: int, decoded_sizes: list) -> None:
    """The target is wide: an image stored on its side needs twice as many pixels."""
    spec = Preprocess(size=(64, 224))
    content = jpeg(scene(rows, columns), orientation=orientation)
    reduced, whole = (spec.resize_and_crop(pixels) for pixels in (spec.decode(content), decode_image(content)))
    assert reduced.shape == (64, 224, 3)
    parts = 1 if rows % 2 else 4 if orientation <= 4 else 2
    assert decoded_sizes == [(rows // parts, columns // parts), (rows, columns)]
    assert difference(reduced, whole).mean() < 1


def test_reduced_for_training_too(decoded_sizes: list) -> None:
    from vitrail.data.augment import Augment
    from vitrail.data.reader import Reader
    from vitrail.data.table import Item, no_stamp

    content = jpeg(scene(2400, 3200))
    item = Item(0, "a.jpg", (0,), lambda: content, no_stamp)
    stored = Reader(Preprocess(), Augment()).read(item)
    assert stored.shape == (280, 373, 3)
    assert decoded_sizes == [(600, 800)]
    assert difference(stored, resize(decode_image(content), 280, 373, "bicubic")).mean() < 1


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:2:2", "4:4:4"])
@pytest.mark.parametrize("quality", [20, 75, 95])
def test_jpegs_are_decoded_as_in_pillow(subsampling: str, quality: int) -> None:
    content = jpeg(scene(163, 211), quality=quality, subsampling=subsampling)
    with Image.open(io.BytesIO(content)) as image:
        assert np.array_equal(decode_image(content), np.asarray(image))
