"""Images inside a page, as data URLs."""

from __future__ import annotations

import base64
import io
from typing import Any

from numpy.typing import NDArray
from PIL import Image

MAX_SIDE = 960  # pixels of an embedded photo
LOSSLESS_SIDE = 200  # pixels below which a photo is embedded as PNG


def image_url(pixels: NDArray[Any]) -> str:
    """A photo: no larger than a page needs, as JPEG unless it is small."""
    image = Image.fromarray(pixels)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    if max(image.size) < LOSSLESS_SIDE:
        return _encode(image, "PNG")
    return _encode(image, "JPEG", quality=88)


def png_url(pixels: NDArray[Any]) -> str:
    """A drawing, with every pixel as it is."""
    return _encode(Image.fromarray(pixels), "PNG", optimize=True)


def data_url(media_type: str, content: bytes) -> str:
    """Encoded content as an address that holds it."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _encode(image: Image.Image, form: str, **options: Any) -> str:
    file = io.BytesIO()
    image.save(file, form, **options)
    return data_url(f"image/{form.lower()}", file.getvalue())
