"""One way from bytes to pixels, for training, evaluation, prediction and serving alike.

The kind of a file is told by its content. Its size is checked before it is decoded, its orientation applied, 16 bits
scaled to 8, transparency laid over white, CMYK and palettes converted. Of an animation the first frame counts.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vitrail.errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 40_000_000
MAX_SIDE = 16_384
BACKGROUND = (255, 255, 255)


def open_image(source: str | Path | BinaryIO, *, name: str = "") -> Image.Image:
    """A picture in RGB, upright, whatever it was stored as."""
    name = name or str(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)  # of damaged EXIF, which is then left aside
            with Image.open(source, formats=FORMATS) as image:
                width, height = image.size
                if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
                    raise DataError(
                        f"{name} is too large to decode.",
                        got=f"{width} x {height} pixels.",
                        hint=f"at most {MAX_PIXELS // 10**6} megapixels and {MAX_SIDE} pixels a side.",
                    )
                image.load()
                return ImageOps.exif_transpose(to_rgb(image))
    except UnidentifiedImageError:
        raise DataError(f"{name} is no picture that Vitrail reads.", hint=f"{', '.join(FORMATS)}.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{name} is too large to decode.", got=f"{error}.") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise DataError(
            f"{name} is damaged or cut short.",
            got=f"{' '.join(str(error).split())}.",
            hint="a new copy, or leave it out.",
        ) from None


def to_rgb(image: Image.Image) -> Image.Image:
    """The picture in three channels of 8 bits; its EXIF tags stay with it."""
    exif = image.getexif()
    if image.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I", "F"):
        image = _eight_bits(image)
    if image.has_transparency_data:
        over = Image.new("RGBA", image.size, (*BACKGROUND, 255))
        image = Image.alpha_composite(over, image.convert("RGBA"))
    converted = image.convert("RGB")
    if exif:
        converted.info["exif"] = exif.tobytes()
    return converted


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey scaled to 8, not clipped; floats are taken as 0 to 1 if they lie there, else as 0 to 255."""
    values = np.asarray(image, dtype=np.float64)
    if image.mode == "F":
        scale = 255.0 if values.size and values.max() <= 1.0 else 1.0
    else:
        scale = 255.0 / 65535.0
    return Image.fromarray(np.clip(np.rint(values * scale), 0, 255).astype(np.uint8))
