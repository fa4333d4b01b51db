"""What files may contain besides plain pixels: orientation, CMYK, 16 bits, frames and palettes."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decode import decode_image
from vitrail.data.transform import Preprocess

# From the EXIF standard: where the stored first row and first column are in the upright image.
STORED = {
    1: lambda upright: upright,  # top, left
    2: lambda upright: upright[:, ::-1],  # top, right
    3: lambda upright: upright[::-1, ::-1],  # bottom, right
    4: lambda upright: upright[::-1],  # bottom, left
    5: lambda upright: upright.transpose(1, 0, 2),  # left, top
    6: lambda upright: upright.transpose(1, 0, 2)[::-1],  # right, top
    7: lambda upright: upright.transpose(1, 0, 2)[::-1, ::-1],  # right, bottom
    8: lambda upright: upright.transpose(1, 0, 2)[:, ::-1],  # left, bottom
}
BACK = {6: 8, 8: 6}  # all others undo themselves


def noise(rows: int = 24, columns: int = 40) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (rows, columns, 3), dtype=np.uint8)


def smooth(rows: int = 48, columns: int = 64) -> np.ndarray:
    return np.asarray(Image.fromarray(noise(6, 8)).resize((columns, rows), Image.BICUBIC))


def file_of(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("mode", ["rgb", "grey"])
def test_orientation(kind: str, orientation: int, mode: str) -> None:
    stored = np.ascontiguousarray(STORED[orientation](noise()))
    options = {"lossless": True} if kind == "WEBP" else {}
    content = file_of(Image.fromarray(stored), kind, exif=exif_of(orientation), **options)
    upright = Image.fromarray(noise()).convert("L" if mode == "grey" else "RGB")
    assert np.array_equal(decode_image(content, mode=mode).squeeze(), np.asarray(upright))


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("mode", ["rgb", "grey"])
def test_orientation_of_jpegs(orientation: int, mode: str) -> None:
    stored = Image.fromarray(smooth())
    plain = decode_image(file_of(stored, "JPEG"), mode=mode)
    decoded = decode_image(file_of(stored, "JPEG", exif=exif_of(orientation)), mode=mode)
    assert np.array_equal(decoded, STORED[BACK.get(orientation, orientation)](plain))
    assert decoded.flags.c_contiguous


@pytest.mark.parametrize("orientation", [0, 9, 65535])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_orientations_that_do_not_exist(kind: str, orientation: int) -> None:
    image = Image.fromarray(smooth())
    content = file_of(image, kind, exif=exif_of(orientation))
    assert np.array_equal(decode_image(content), decode_image(file_of(image, kind)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0",
        b"Exif\0\0nonsense",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(30),
        b"Exif\0\0" + np.random.default_rng(0).bytes(500),
    ],
    ids=["empty", "words", "far away", "many entries", "random"],
)
def test_corrupt_exif_is_ignored(kind: str, exif: bytes) -> None:
    image = Image.fromarray(smooth())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own warnings
        content = file_of(image, kind, exif=exif)
        assert np.array_equal(decode_image(content), decode_image(file_of(image, kind)))


def test_inverted_cmyk_keeps_its_colours() -> None:
    """Adobe stores CMYK in JPEGs inverted, and says so in a marker of its own."""
    pixels = smooth()
    content = file_of(Image.fromarray(pixels).convert("CMYK"), "JPEG", quality=95)
    assert b"Adobe" in content
    apart = np.abs(decode_image(content).astype(int) - pixels)
    assert apart.mean() < 3
    grey = decode_image(content, mode="grey").astype(int)
    assert np.abs(grey[:, :, 0] - np.asarray(Image.fromarray(pixels).convert("L"))).mean() < 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("mode", ["rgb", "grey"])
def test_16_bits_are_scaled(kind: str, mode: str) -> None:
    values = np.linspace(0, 65535, 40 * 50).astype(np.uint16).reshape(40, 50)
    pixels = decode_image(file_of(Image.fromarray(values), kind), mode=mode)
    assert pixels.shape == (40, 50, 3 if mode == "rgb" else 1)
    assert np.array_equal(pixels[:, :, 0], np.rint(values / 257).astype(np.uint8))


def test_the_first_of_500_frames() -> None:
    frames = [Image.new("RGB", (12, 10), (number % 256, 0, 255 - number % 256)) for number in range(500)]
    content = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with Image.open(io.BytesIO(content)) as image:
        assert image.n_frames == 500
    pixels = decode_image(content)
    assert pixels.shape == (10, 12, 3)
    assert np.unique(pixels.reshape(-1, 3), axis=0).tolist() == [[0, 0, 255]]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
@pytest.mark.parametrize("background", [(255, 255, 255), (10, 200, 30)])
def test_palettes_with_transparency(kind: str, background: tuple[int, int, int]) -> None:
    """The left half is red, the right half the palette's transparent entry."""
    image = Image.new("P", (8, 4))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.paste(1, (4, 0, 8, 4))
    content = file_of(image, kind, transparency=1)
    pixels = decode_image(content, background=background)
    assert np.unique(pixels[:, :4].reshape(-1, 3), axis=0).tolist() == [[255, 0, 0]]
    assert np.unique(pixels[:, 4:].reshape(-1, 3), axis=0).tolist() == [list(background)]
    spec = Preprocess(size=(4, 8), background=background, mean=(0, 0, 0), std=(1, 1, 1))
    assert np.array_equal(spec.decode(content), pixels)


def test_half_transparent_pixels_are_blended() -> None:
    image = Image.new("RGBA", (2, 2), (200, 100, 0, 51))  # a fifth
    pixels = decode_image(file_of(image, "PNG"), background=(0, 100, 50))
    assert pixels[0, 0].tolist() == [40, 100, 40]
    grey = Image.new("LA", (2, 2), (200, 51))
    assert decode_image(file_of(grey, "PNG"), mode="grey", background=(0, 0, 0))[0, 0].tolist() == [40]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
@pytest.mark.parametrize("stored", ["L", "RGB"])
def test_grey_has_one_channel(kind: str, stored: str) -> None:
    image = Image.fromarray(smooth()).convert(stored)
    content = file_of(image, kind, **({"lossless": True} if kind == "WEBP" else {}))
    grey, rgb = (decode_image(content, mode=mode) for mode in ("grey", "rgb"))
    assert (grey.shape, rgb.shape) == ((48, 64, 1), (48, 64, 3))
    apart = np.abs(grey[:, :, 0].astype(int) - np.asarray(Image.fromarray(rgb).convert("L")))
    assert apart.max() <= (0 if kind != "JPEG" or stored == "L" else 2)  # a JPEG stores its own luma
    if stored == "L":
        assert np.array_equal(rgb, np.repeat(grey, 3, axis=2))
    spec = Preprocess(size=(24, 24), mode="grey", mean=(0.5,), std=(0.5,))
    assert spec.normalise(spec.resize_and_crop(spec.decode(content))[None]).shape == (1, 1, 24, 24)
