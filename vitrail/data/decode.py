"""One way from bytes to pixels, for training, evaluation, prediction and serving alike.

The kind of a file is told by its content. Its size is checked before it is decoded, its orientation applied, 16 bits
scaled to 8, transparency laid over a background, CMYK and palettes converted. Of an animation the first frame counts.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from vitrail.errors import DataError, brief

Pixels = NDArray[np.uint8]
"""Rows, columns and channels, in 8 bits."""
Colour = tuple[int, int, int]
Mode = Literal["rgb", "grey"]
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 40_000_000
MAX_SIDE = 16_384
MAX_BYTES = 256 * 2**20  # of a file: 40 megapixels in 16 bits, not compressed
WHITE = (255, 255, 255)
JPEG_START = b"\xff\xd8\xff"
FOUR_COLOURS = ("CMYK", "YCCK")  # which libjpeg-turbo takes for RGB
EXIF_REACH = 65_536  # bytes of a JPEG in which the orientation stands, if there is one
SPARE = 2  # a reduced JPEG keeps this many pixels for each that is wanted, so that the difference cannot be seen
TURNS = {  # what makes a picture upright, by its EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_file(path: str | Path, *, name: str = "") -> bytes:
    """The bytes of a plain file; a pipe or a device is refused before it can block."""
    name = name or str(path)
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode):
        os.close(handle)
        raise DataError(f"{name} is no plain file.", got="a folder, pipe or device.", hint="leaving it out.")
    with os.fdopen(handle, "rb") as file:
        if state.st_size > MAX_BYTES:
            raise too_large(name, f"{state.st_size / 2**20:,.0f} MiB")
        return file.read()


def file_stamp(path: Path) -> str:
    """A word that changes when the file does, without reading it."""
    state = path.stat()
    return f"{path.absolute()}|{state.st_size}|{state.st_mtime_ns}|{state.st_ctime_ns}"


def open_image(path: str | Path) -> Image.Image:
    """The picture of a file in RGB, upright, whatever it was stored as."""
    return Image.fromarray(decode_image(read_file(path), name=str(path)))


def decode_image(
    content: bytes,
    *,
    name: str = "the picture",
    mode: Mode = "rgb",
    background: Colour = WHITE,
    target: Callable[[int, int], tuple[int, int]] | None = None,
) -> Pixels:
    """A picture's pixels, upright, whatever it was stored as.

    `target` tells the rows and columns to which a picture of so many rows and columns will be resized; a JPEG that is
    far larger is then decoded at a half, a quarter or an eighth of its size.
    """
    try:
        if content[:3] == JPEG_START:
            pixels = _decode_jpeg(content, name, mode, target)
            if pixels is not None:
                return pixels
        return _decode_any(content, name, mode, background)
    except DataError:
        raise
    except UnidentifiedImageError:
        got = f"{len(content):,} bytes that begin with {content[:8]!r}." if content else "an empty file."
        raise DataError(f"{name} is no picture that Vitrail reads.", got=got, hint=f"{', '.join(FORMATS)}.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_large(name, str(error)) from None
    except Exception as error:  # noqa: BLE001 - fuzzing finds ever new ones in decoders
        raise damaged(name, brief(error)) from None


def glimpse(content: bytes) -> Pixels | None:
    """What is left of a damaged JPEG, for a person to look at; never for a model."""
    try:
        rows, columns, space, _ = simplejpeg.decode_jpeg_header(content)
        check_size(rows, columns, "")
        return None if space in FOUR_COLOURS else simplejpeg.decode_jpeg(content, strict=False)
    except (ValueError, DataError):
        return None


def damaged(name: str, got: str) -> DataError:
    """The error for a picture that begins well and goes wrong."""
    return DataError(f"{name} is damaged or cut short.", got=got, hint="a new copy, or leave it out.")


def too_large(name: str, size: str) -> DataError:
    """The error for a picture that is not decoded because of its size."""
    limits = f"at most {MAX_PIXELS // 10**6} megapixels and {MAX_SIDE} pixels a side."
    return DataError(f"{name} is too large to decode.", got=f"{size}.", hint=limits)


def check_size(rows: int, columns: int, name: str) -> None:
    """Refuse what is too large, before it is decoded."""
    if rows * columns > MAX_PIXELS or max(rows, columns) > MAX_SIDE:
        raise too_large(name, f"{columns} x {rows} pixels")


def _decode_jpeg(
    content: bytes, name: str, mode: Mode, target: Callable[[int, int], tuple[int, int]] | None
) -> Pixels | None:
    """A JPEG by libjpeg-turbo without detours; None if Pillow should have the last word."""
    try:
        rows, columns, space, _ = simplejpeg.decode_jpeg_header(content)
        check_size(rows, columns, name)
        if space in FOUR_COLOURS:
            return None
        orientation = jpeg_orientation(content)
        scale = 8
        if target is not None:
            wanted = target(columns, rows)[::-1] if orientation > 4 else target(rows, columns)
            scale = _reduced(rows, columns, *wanted)
        pixels = simplejpeg.decode_jpeg(
            content,
            colorspace="rgb" if mode == "rgb" else "gray",
            min_height=rows * scale // 8,
            min_width=columns * scale // 8,
        )
    except ValueError:  # a damage that Pillow may forgive
        return None
    return turned(pixels, orientation)


def _reduced(rows: int, columns: int, wanted_rows: int, wanted_columns: int) -> int:
    """The eighths of its size at which a JPEG is decoded: whole cells only, so that no edge moves."""
    for eighths in (1, 2, 4):
        cell = 8 // eighths
        whole = rows % cell == 0 and columns % cell == 0
        if whole and rows >= SPARE * cell * wanted_rows and columns >= SPARE * cell * wanted_columns:
            return eighths
    return 8


def jpeg_orientation(content: bytes) -> int:
    """The EXIF orientation of a JPEG, 1 to 8."""
    if content.find(b"Exif\x00\x00", 0, EXIF_REACH) < 0:
        return 1
    with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
        return orientation_of(image)


def turned(pixels: Pixels, orientation: int) -> Pixels:
    """Pixels as they were seen, given their EXIF orientation."""
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
        flat = upright(to_rgb(image, background), orientation_of(image))
    if mode == "grey":
        flat = flat.convert("L")
    return np.array(flat).reshape(flat.height, flat.width, -1)


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; damaged EXIF, which good photos often have, says nothing."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # noqa: BLE001 - the picture itself is fine
        return 1
    return value if value in TURNS else 1


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """The picture as it was seen, given its EXIF orientation."""
    turn = TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


def to_rgb(image: Image.Image, background: Colour = WHITE) -> Image.Image:
    """The picture in three channels of 8 bits."""
    if image.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I", "F"):
        image = _eight_bits(image)
    if image.has_transparency_data:
        over = Image.new("RGBA", image.size, (*background, 255))
        image = Image.alpha_composite(over, image.convert("RGBA"))
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey scaled to 8, not clipped; floats are taken as 0 to 1 if they lie there, else as 0 to 255."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
    if image.mode == "F":
        scale = 255.0 if values.size and values.max() <= 1.0 else 1.0
    else:
        scale = 255.0 / 65535.0
    return Image.fromarray(np.clip(np.rint(values * scale), 0, 255).astype(np.uint8))


def as_pixels(array: NDArray[np.generic], mode: Mode = "rgb") -> Pixels:
    """An array of a data set in the channels that are asked for; grey is its one channel three times."""
    pixels: Any = array[:, :, None] if array.ndim == 2 else array
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise DataError(
            "an array of pixels has 8 bits, and one or three channels last.",
            got=f"{pixels.dtype}, shape {tuple(array.shape)}.",
            hint="uint8 of shape (rows, columns) or (rows, columns, 3).",
        )
    if mode == "grey" and pixels.shape[2] == 3:
        return np.array(Image.fromarray(pixels).convert("L"))[:, :, None]
    if mode == "rgb" and pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    return np.require(pixels, requirements=["C", "W"])  # as PyTorch asks of memory that it shares
