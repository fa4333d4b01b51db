"""One way from bytes to pixels, for training, evaluation, prediction and serving alike.

The kind of a file is told by its content. Its size is checked before it is decoded, its orientation applied, 16 bits
scaled to 8, transparency laid over white, CMYK and palettes converted. Of an animation the first frame counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from vitrail.errors import DataError, brief

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 40_000_000
MAX_SIDE = 16_384
BACKGROUND = (255, 255, 255)
TURNS = {  # what makes a picture upright, by its EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_image(source: str | Path | BinaryIO, *, name: str = "") -> Image.Image:
    """A picture in RGB, upright, whatever it was stored as."""
    name = name or str(source)
    try:
        with Image.open(source, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
                raise _too_large(name, f"{width} x {height} pixels")
            image.load()
            return upright(to_rgb(image), _orientation(image))
    except (DataError, FileNotFoundError, PermissionError):
        raise
    except UnidentifiedImageError:
        raise DataError(f"{name} is no picture that Vitrail reads.", hint=f"{', '.join(FORMATS)}.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, str(error)) from None
    except Exception as error:  # noqa: BLE001 - fuzzing finds ever new ones in decoders
        raise DataError(
            f"{name} is damaged or cut short.", got=brief(error), hint="a new copy, or leave it out."
        ) from None


def _too_large(name: str, size: str) -> DataError:
    limits = f"at most {MAX_PIXELS // 10**6} megapixels and {MAX_SIDE} pixels a side."
    return DataError(f"{name} is too large to decode.", got=f"{size}.", hint=limits)


def _orientation(image: Image.Image) -> int:
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


def to_rgb(image: Image.Image) -> Image.Image:
    """The picture in three channels of 8 bits."""
    if image.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I", "F"):
        image = _eight_bits(image)
    if image.has_transparency_data:
        over = Image.new("RGBA", image.size, (*BACKGROUND, 255))
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
