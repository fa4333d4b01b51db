"""The one decoder, from bytes to pixels, for training, evaluation, prediction and serving alike.

The content decides the format, not the name. The size is checked before decoding, the EXIF orientation is applied, 16
bits are scaled to 8, transparency is blended over a background, CMYK and palettes are converted. Of an animation, the
first frame is decoded. An image whose cost its headers cannot bound is decoded in a guard process.
"""

from __future__ import annotations

import io
import math
import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from vitrail.data.decode_budget import decode_cost, reserve_memory
from vitrail.data.guard import run_guarded
from vitrail.errors import DataError, brief

Pixels = NDArray[np.uint8]
"""Rows, columns and channels, in 8 bits: [Y X C]."""
Colour = tuple[int, int, int]
Mode = Literal["rgb", "grey"]
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 40_000_000
MAX_SIDE = 16_384
MAX_BYTES = 256 * 2**20  # of a file: 40 megapixels in 16 bits, uncompressed
WHITE = (255, 255, 255)
JPEG_START = b"\xff\xd8\xff"
CMYK_SPACES = ("CMYK", "YCCK")  # which libjpeg-turbo would decode as RGB
EXIF_BYTES = 65_536  # at the start of a JPEG, where the EXIF orientation is, if there is one
OVERSAMPLING = 2  # pixels per target pixel and side that a reduced JPEG keeps, so that no difference is visible
BAND_PIXELS = 2**18  # converted at a time, so that they stay in the processor's cache
DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
TRANSPOSES = {  # what makes an image upright, by its EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_file(path: str | Path, *, name: str = "") -> bytes:
    """The bytes of a regular file; a pipe or device is refused before it can block."""
    name = name or str(path)
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode):
        os.close(handle)
        raise DataError(f"{name} is not a regular file.", got="a folder, pipe or device.", hint="leaving it out.")
    with os.fdopen(handle, "rb") as file:
        if state.st_size > MAX_BYTES:
            raise too_large(name, f"{state.st_size / 2**20:,.0f} MiB")
        return file.read()


def file_stamp(path: Path) -> str:
    """A string that changes when the file does, without reading it."""
    state = path.stat()
    return f"{path.absolute()}|{state.st_size}|{state.st_mtime_ns}|{state.st_ctime_ns}"


def open_image(path: str | Path) -> Image.Image:
    """The image of a file, in RGB and upright, whatever its format."""
    return Image.fromarray(decode_image(read_file(path), name=str(path)))


def decode_image(
    content: bytes,
    *,
    name: str = "the image",
    mode: Mode = "rgb",
    background: Colour = WHITE,
    target_size: Callable[[int, int], tuple[int, int]] | None = None,
) -> Pixels:
    """The pixels of an encoded image, upright, whatever its format.

    `target_size` maps the image's rows and columns to those it will be resized to. A much larger JPEG is then decoded
    at a half, a quarter or an eighth of its size.
    """
    cost = decode_cost(content, name)
    if cost.doubt:
        sizes = [cost.size, cost.size[::-1]] if all(cost.size) else []  # EXIF may exchange the sides
        targets = [] if target_size is None else [(*size, *target_size(*size)) for size in sizes]
        job = {"task": "decode", "name": name, "mode": mode, "background": background, "targets": targets}
        return run_guarded(job, content)[0]
    with reserve_memory(cost.memory):
        return decode_here(content, name=name, mode=mode, background=background, target_size=target_size)


def decode_here(
    content: bytes,
    *,
    name: str,
    mode: Mode,
    background: Colour,
    target_size: Callable[[int, int], tuple[int, int]] | None,
) -> Pixels:
    """Decode in this thread, however long it takes."""
    try:
        if content[:3] == JPEG_START:
            pixels = _decode_jpeg(content, name, mode, target_size)
            if pixels is not None:
                return pixels
        return _decode_any(content, name, mode, background)
    except DataError:
        raise
    except UnidentifiedImageError:
        got = f"{len(content):,} bytes that begin with {content[:8]!r}." if content else "an empty file."
        raise DataError(
            f"{name} is not an image that Vitrail can read.", got=got, hint=f"{', '.join(FORMATS)}."
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_large(name, str(error)) from None
    except Exception as error:  # noqa: BLE001 - fuzzing keeps finding new ones in decoders
        raise damaged(name, brief(error)) from None


def decode_damaged_jpeg(content: bytes) -> Pixels | None:
    """Whatever can be decoded of a damaged JPEG, to show to a person, never to a model."""
    try:
        if decode_cost(content).doubt:
            return None
        rows, columns, space, _ = simplejpeg.decode_jpeg_header(content)
        check_size(rows, columns, "")
        return None if space in CMYK_SPACES else simplejpeg.decode_jpeg(content, strict=False)
    except (ValueError, DataError):
        return None


def damaged(name: str, got: str) -> DataError:
    """The error for an image that is recognised but cannot be decoded."""
    return DataError(f"{name} is damaged or truncated.", got=got, hint="a fresh copy, or leaving it out.")


def too_large(name: str, size: str) -> DataError:
    """The error for an image that exceeds the limits."""
    limits = f"at most {MAX_PIXELS // 10**6} megapixels and {MAX_SIDE} pixels per side."
    return DataError(f"{name} is too large to decode.", got=f"{size}.", hint=limits)


def check_size(rows: int, columns: int, name: str) -> None:
    """Refuse an image that is too large, before decoding it."""
    if rows * columns > MAX_PIXELS or max(rows, columns) > MAX_SIDE:
        raise too_large(name, f"{columns} x {rows} pixels")


def _decode_jpeg(
    content: bytes, name: str, mode: Mode, target_size: Callable[[int, int], tuple[int, int]] | None
) -> Pixels | None:
    """Decode a JPEG directly with libjpeg-turbo; None if Pillow should try."""
    try:
        rows, columns, space, _ = simplejpeg.decode_jpeg_header(content)
        check_size(rows, columns, name)
        if space in CMYK_SPACES:
            return None
        orientation = jpeg_orientation(content)
        scale = 8
        if target_size is not None:
            target = target_size(columns, rows)[::-1] if orientation > 4 else target_size(rows, columns)
            scale = _scale_eighths(rows, columns, *target)
        pixels = simplejpeg.decode_jpeg(
            content,
            colorspace="rgb" if mode == "rgb" else "gray",
            min_height=rows * scale // 8,
            min_width=columns * scale // 8,
        )
    except ValueError:  # damage that Pillow may tolerate
        return None
    return orient_pixels(pixels, orientation)


def _scale_eighths(rows: int, columns: int, target_rows: int, target_columns: int) -> int:
    """The eighths of its size at which to decode a JPEG; only those that divide both sides, so that no edge moves."""
    for eighths in (1, 2, 4):
        cell = 8 // eighths
        divides = rows % cell == 0 and columns % cell == 0
        factor = OVERSAMPLING * cell
        if divides and rows >= factor * target_rows and columns >= factor * target_columns:
            return eighths
    return 8


def jpeg_orientation(content: bytes) -> int:
    """The EXIF orientation of a JPEG, 1 to 8."""
    if content.find(b"Exif\x00\x00", 0, EXIF_BYTES) < 0:
        return 1
    with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
        return orientation_of(image)


def orient_pixels(pixels: Pixels, orientation: int) -> Pixels:
    """The pixels made upright, by their EXIF orientation."""
    if orientation > 4:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _decode_any(content: bytes, name: str, mode: Mode, background: Colour) -> Pixels:
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        check_size(image.height, image.width, name)
        image.load()
        pixels, orientation = to_pixels(image, mode, background), orientation_of(image)
    return orient_pixels(pixels, orientation)


def to_pixels(image: Image.Image, mode: Mode = "rgb", background: Colour = WHITE) -> Pixels:
    """The pixels of an image, converted a few rows at a time: whole copies of a large one would fill the memory."""
    step = max(1, BAND_PIXELS // max(1, image.width))
    if step >= image.height:
        return _convert(image, mode, background)
    white = _white(image)
    pixels = np.empty((image.height, image.width, 3 if mode == "rgb" else 1), dtype=np.uint8)
    for top in range(0, image.height, step):
        band = image.crop((0, top, image.width, min(top + step, image.height)))
        pixels[top : top + step] = _convert(band, mode, background, white)
    return pixels


def _convert(image: Image.Image, mode: Mode, background: Colour, white: float | None = None) -> Pixels:
    flat = to_rgb(image, background, white)
    return np.array(flat if mode == "rgb" else flat.convert("L")).reshape(flat.height, flat.width, -1)


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; damaged EXIF, common in good photos, counts as 1."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # noqa: BLE001 - the image itself is fine
        return 1
    return value if value in TRANSPOSES else 1


def orient_image(image: Image.Image, orientation: int) -> Image.Image:
    """The image made upright, by its EXIF orientation."""
    transpose = TRANSPOSES.get(orientation)
    return image if transpose is None else image.transpose(transpose)


def to_rgb(image: Image.Image, background: Colour = WHITE, white: float | None = None) -> Image.Image:
    """The image as three channels of 8 bits; of a part of an image, `white` is that of the whole."""
    if image.mode in DEEP_MODES:
        image = _to_8_bits(image, _white(image) if white is None else white)
    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, (*background, 255))
        image = Image.alpha_composite(canvas, image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _white(image: Image.Image) -> float:
    """The value of white: 65,535, except that floats up to 1 are taken as 0 to 1, and others as 0 to 255."""
    if image.mode != "F":
        return 65535.0
    brightest = cast("float", image.getextrema()[1])
    if math.isfinite(brightest):  # which it is not if values are missing or infinite; those count as 0
        return 1.0 if brightest <= 1.0 else 255.0
    step = max(1, BAND_PIXELS // max(1, image.width))
    bands = (image.crop((0, top, image.width, min(top + step, image.height))) for top in range(0, image.height, step))
    return 1.0 if all(_finite_values(band).max(initial=0.0) <= 1.0 for band in bands) else 255.0


def _finite_values(image: Image.Image) -> NDArray[np.float64]:
    return np.nan_to_num(np.array(image, dtype=np.float64), copy=False, posinf=0.0, neginf=0.0)


@cache
def _levels() -> Pixels:
    """The level of each value of 16 bits."""
    return np.rint(np.arange(65536) * (255.0 / 65535.0)).astype(np.uint8)


def _to_8_bits(image: Image.Image, white: float) -> Image.Image:
    """Deep grey scaled to 8 bits, not clipped."""
    if image.mode not in ("I", "F"):
        return Image.fromarray(_levels()[np.asarray(image)])
    values = _finite_values(image)
    np.multiply(values, 255.0 / white, out=values)
    np.clip(np.rint(values, out=values), 0, 255, out=values)
    return Image.fromarray(values.astype(np.uint8))


def as_pixels(array: NDArray[np.generic], mode: Mode = "rgb") -> Pixels:
    """An array of a data set with the channels of `mode`; as RGB, a grey channel is repeated three times."""
    pixels: Any = array[:, :, None] if array.ndim == 2 else array
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise DataError(
            "pixel arrays must be uint8, with one or three channels last.",
            got=f"{pixels.dtype}, shape {tuple(array.shape)}.",
            hint="uint8 of shape (rows, columns) or (rows, columns, 3).",
        )
    if mode == "grey" and pixels.shape[2] == 3:
        return np.array(Image.fromarray(pixels).convert("L"))[:, :, None]
    if mode == "rgb" and pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    return np.require(pixels, requirements=["C", "W"])  # as PyTorch requires to share the memory
