"""Images to tensors and folders to classes, as `evaluate` needs them."""

from __future__ import annotations

import io
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail import create_model, evaluate, save_weights
from vitrail.data.decode import open_image
from vitrail.data.find import open_data
from vitrail.data.labels import bind, imagenet_classes
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, UnknownNameError, WeightsError


def saved(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


def test_orientation_is_applied(tmp_path: Path) -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, 8:] = 255  # the right half is white
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise: right becomes bottom
    upright = np.asarray(open_image(saved(image, tmp_path / "a.png", exif=exif)))
    assert upright.shape == (16, 8, 3)
    assert upright[:8].max() == 0
    assert upright[8:].min() == 255


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.full((4, 6), 40000, np.uint16))
    else:
        image = Image.new("L", (6, 4), 128).convert(mode)
    rgb = open_image(saved(image, tmp_path / "a.png"))
    assert (rgb.mode, rgb.size) == ("RGB", (6, 4))
    if mode == "I;16":
        assert np.asarray(rgb)[0, 0].tolist() == [round(40000 * 255 / 65535)] * 3
    elif mode != "1":
        assert np.asarray(rgb)[0, 0].tolist() == [128] * 3


def test_cmyk_and_alpha(tmp_path: Path) -> None:
    assert open_image(saved(Image.new("CMYK", (4, 4)), tmp_path / "a.jpg")).mode == "RGB"
    clear = open_image(saved(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), tmp_path / "a.png"))
    assert np.asarray(clear)[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize(("top", "grey"), [(1.0, 64), (255.0, 0)])
def test_floats_are_scaled(top: float, grey: int, tmp_path: Path) -> None:
    values = np.full((4, 4), 0.25, np.float32)
    values[0, 0], values[0, 1], values[0, 2] = top, np.nan, np.inf
    pixels = np.asarray(open_image(saved(Image.fromarray(values), tmp_path / "a.tif")))
    assert pixels[3, 3].tolist() == [grey] * 3
    assert pixels[0, 0].tolist() == [255] * 3
    assert pixels[0, 1].tolist() == pixels[0, 2].tolist() == [0] * 3


def test_damaged_exif_does_not_hurt_a_good_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(Image.new("RGB", (16, 8)), tmp_path / "a.jpg", exif=exif)
    data = path.read_bytes()
    start = data.index(b"Exif")
    for offset in range(6, 32):
        path.write_bytes(data[: start + offset] + bytes([data[start + offset] ^ 0xFF]) + data[start + offset + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert sorted(open_image(path).size) == [8, 16]


def test_the_content_decides_the_format(tmp_path: Path) -> None:
    assert open_image(saved(Image.new("RGB", (4, 4)), tmp_path / "a.txt", format="PNG")).size == (4, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b""), "not an image that Vitrail can read"),
        (lambda path: path.write_text("hello"), "not an image that Vitrail can read"),
        (
            lambda path: Image.effect_noise((64, 64), 9).save(path) or path.write_bytes(path.read_bytes()[:300]),
            "truncated",
        ),
        (lambda path: Image.new("1", (20000, 10)).save(path), "too large"),
        (lambda path: Image.new("1", (8000, 8000)).save(path), "too large"),
        (lambda path: Image.new("1", (14000, 14000)).save(path), "too large"),
    ],
    ids=["empty", "text", "truncated", "wide", "megapixels", "bomb"],
)
def test_bad_images(make, message: str, tmp_path: Path) -> None:
    make(tmp_path / "bad.png")
    with pytest.raises(DataError, match=message) as caught:
        open_image(tmp_path / "bad.png")
    assert "bad.png" in str(caught.value)


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (256, 256), (224, 500)])
def test_preprocessing_crops_the_middle(size: tuple[int, int]) -> None:
    tensor = Preprocess(size=(224, 224), crop=0.9)(Image.new("RGB", size, (255, 0, 127)))
    assert tensor.shape == (3, 224, 224)
    assert tensor[:, 0, 0].tolist() == pytest.approx([1.0, -1.0, -0.0039], abs=1e-4)


@pytest.mark.parametrize("size", [(300, 200), (200, 301), (640, 427), (224, 500)])
def test_resizing_matches_timm_and_torchvision(size: tuple[int, int]) -> None:
    """The whole image resized to 248 on its short side, rounded down on the other, and cropped in the middle."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    longer = int(248 * max(size) / min(size))
    whole = image.resize((248, longer) if size[0] < size[1] else (longer, 248), Image.Resampling.BICUBIC)
    left, top = round((whole.width - 224) / 2), round((whole.height - 224) / 2)
    theirs = whole.crop((left, top, left + 224, top + 224))
    # PyTorch and Pillow round one pixel in a few hundred differently.
    gaps = np.abs(Preprocess(crop=0.9).resize_and_crop(np.array(image)).astype(int) - np.asarray(theirs).astype(int))
    assert gaps.max() <= 2
    assert gaps.mean() < 0.02


def test_a_line_of_pixels_is_not_resized_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """16,384 x 1 pixels would become 4,063,232 x 248; the crop is the same either way."""
    sizes: list[tuple[int, int]] = []
    resize = Image.Image.resize

    def watched(self: Image.Image, size: tuple[int, int], *words: object, **more: object) -> Image.Image:
        sizes.append(size)
        return resize(self, size, *words, **more)

    monkeypatch.setattr(Image.Image, "resize", watched)
    ramp = Image.fromarray(np.linspace(0, 255, 4096).astype(np.uint8)[None]).convert("RGB")
    part = Preprocess(crop=0.9).resize_and_crop(np.array(ramp)).astype(int)
    assert sizes == [(224, 224)]
    assert part.min() >= 126
    assert part.max() <= 129


def test_preprocessing_to_a_non_square_size() -> None:
    ramp = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8), (64, 1))).convert("RGB")
    cover = Preprocess(size=(32, 64), mean=(0, 0, 0), std=(1, 1, 1))(ramp)
    assert cover.shape == (3, 32, 64)
    assert cover[0, 0, 0].item() == pytest.approx(0.25, abs=0.02)  # a quarter is cut away at each side
    squash = Preprocess(size=(32, 64), mean=(0, 0, 0), std=(1, 1, 1), resize="squash")(ramp)
    assert squash[0, 0, 0].item() < 0.02


def test_a_pillow_image_is_made_upright_too() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    spec = Preprocess(size=(16, 8))
    theirs = spec(Image.open(file))
    assert torch.equal(theirs, spec(spec.decode(file.getvalue())))
    assert torch.equal(theirs, spec(np.rot90(pixels, -1).copy()))


def test_imagenet_folders_bind_by_index_id_and_name() -> None:
    assert bind(["shoe shop", "horse cart", "ash bin", "Cardigan", "cardigan"], 1000) == {
        "shoe shop": 788,
        "horse cart": 603,
        "ash bin": 412,
        "Cardigan": 264,
        "cardigan": 474,
    }
    bound = bind(["007", "n01440764", "great_white_shark", "Siberian Husky", "hen-of-the-woods"], 1000)
    assert bound == {"007": 7, "n01440764": 0, "great_white_shark": 2, "Siberian Husky": 250, "hen-of-the-woods": 996}
    assert len({each.wnid for each in imagenet_classes()}) == 1000
    assert bind([each.name for each in imagenet_classes()], 1000) == {
        each.name: each.number for each in imagenet_classes()
    }


@pytest.mark.parametrize(
    ("folders", "num_classes", "error", "message"),
    [
        (["crane"], 1000, DataError, r"ambiguous(.|\n)*n02012849 \(crane \(bird\)\), n03126707"),
        (["tnch"], 1000, UnknownNameError, r"tench"),
        (["0", "n01440764"], 1000, DataError, r"two folders mean the same class"),
        (["1000"], 1000, DataError, r"not a class index"),
        (["cat"], 37, DataError, r"has no class names"),
        (["37"], 37, DataError, r"not a class index"),
    ],
)
def test_folders_that_match_no_class(folders: list[str], num_classes: int, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        bind(folders, num_classes)


def test_the_order_of_images(tmp_path: Path) -> None:
    outside = saved(Image.new("RGB", (4, 4)), tmp_path / "outside.png")
    root = tmp_path / "data"
    for name in ("b/2.png", "b/10.png", "a/z.PNG", "a/.hidden.png", "a/note.txt", "a/deep/er.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(outside.read_bytes())
    (root / "a" / "leak.png").symlink_to(outside)
    (root / "a" / "inside.png").symlink_to(root / "b" / "2.png")
    (root / "a" / "gone.png").symlink_to(root / "nowhere.png")
    os.mkfifo(root / "b" / "pipe.png")
    (tmp_path / "elsewhere").mkdir()
    (root / "c").symlink_to(tmp_path / "elsewhere")
    table = open_data(root)
    assert table.names == ["a/deep/er.png", "a/inside.png", "a/z.PNG", "b/10.png", "b/2.png"]
    assert [table.label_names(index) for index in range(5)] == [("a",)] * 3 + [("b",)] * 2
    assert sorted((each.path, each.kind) for each in table.findings) == [
        ("a/gone.png", "link"),
        ("a/leak.png", "link"),
        ("b/pipe.png", "special"),
        ("c", "link"),
    ]


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A model that distinguishes black from white, and images of both; one is in the wrong folder."""
    model = create_model("vit_mu_patch16_224", num_classes=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.patch_embed.proj.weight[0] = 1 / 768
        model.patch_embed.proj.weight[1] = -1 / 768
        model.norm.weight.fill_(1)
        for block in model.blocks:
            block.norm1.weight.fill_(1)
            block.attn.qkv.weight[64:66, :2] = torch.eye(2)
            block.attn.proj.weight[:2, :2] = torch.eye(2)
        model.head.weight[0, 1] = 1
        model.head.weight[1, 0] = 1
    save_weights(model, tmp_path / "w.safetensors")
    for index, colour in enumerate(["black", "white"]):
        (tmp_path / "data" / str(index)).mkdir(parents=True)
        for number in range(3):
            saved(Image.new("RGB", (240, 230), colour), tmp_path / "data" / str(index) / f"{number}.png")
    saved(Image.new("RGB", (240, 230), "white"), tmp_path / "data" / "0" / "3.png")
    return tmp_path / "w.safetensors", tmp_path / "data"


def test_evaluate_counts_right(small: tuple[Path, Path]) -> None:
    weights, data = small
    seen: list[tuple[int, int]] = []
    result = evaluate(
        "vit_mu_patch16_224",
        data,
        weights=weights,
        batch_size=3,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert result.n == 7
    assert result.top1 == pytest.approx(6 / 7)
    assert result.top5 == 1.0
    assert result.real_top1 is None
    assert [label for _, label in result.predictions] == [0, 0, 0, 1, 1, 1, 1]
    assert seen == [(3, 7), (6, 7), (7, 7)]


def test_evaluate_names_the_broken_file(small: tuple[Path, Path]) -> None:
    weights, data = small
    (data / "1" / "broken.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(DataError, match=r"broken\.png"):
        evaluate("vit_mu_patch16_224", data, weights=weights)


def test_evaluate_can_skip_broken_files(small: tuple[Path, Path]) -> None:
    weights, data = small
    (data / "1" / "broken.png").write_bytes(b"\x89PNG nothing")
    result = evaluate("vit_mu_patch16_224", data, weights=weights, policy="skip", batch_size=3)
    assert (result.n, result.top1) == (7, pytest.approx(6 / 7))
    assert len(result.skipped) == 1
    assert "1/broken.png" in result.skipped[0]


def test_evaluate_uses_the_test_or_validation_split(small: tuple[Path, Path], tmp_path: Path) -> None:
    weights, data = small
    for split, classes in (("train", "0"), ("val", "01")):
        for name in classes:
            shutil.copytree(data / name, tmp_path / "split" / split / name)
    (tmp_path / "split" / "val" / "0" / "3.png").unlink()
    assert evaluate("vit_mu_patch16_224", tmp_path / "split", weights=weights).n == 6
    assert evaluate("vit_mu_patch16_224", tmp_path / "split", weights=weights, split="train").n == 4
    with pytest.raises(DataError, match=r"no split 'test'(.|\n)*train, val"):
        evaluate("vit_mu_patch16_224", tmp_path / "split", weights=weights, split="test")


def test_weights_without_a_classifier_are_not_evaluated(small: tuple[Path, Path], tmp_path: Path) -> None:
    _, data = small
    save_weights(create_model("vit_mu_patch16_224", num_classes=0), tmp_path / "trunk.safetensors")
    with pytest.raises(WeightsError, match=r"have no classifier"):
        evaluate("vit_mu_patch16_224", data, weights=tmp_path / "trunk.safetensors")
