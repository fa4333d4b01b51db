"""Decodes an image more strictly than training does, and says what it is; for `vitrail check`."""

from __future__ import annotations

import io
from typing import NamedTuple

import simplejpeg
from PIL import Image

from vitrail.data.decode import (
    CMYK_SPACES,
    FORMATS,
    JPEG_START,
    Pixels,
    check_size,
    jpeg_orientation,
    orient_pixels,
    orientation_of,
    to_pixels,
)
from vitrail.data.decode_budget import decode_cost, reserve_memory
from vitrail.data.guard import run_guarded

MIN_JPEG_SIDE = 96  # pixels of the short side that a JPEG decoded for its thumbnail keeps


class DecodedImage(NamedTuple):
    """The pixels of an image, upright, and what its file says about it."""

    pixels: Pixels
    format: str
    mode: str
    size: tuple[int, int]
    """Rows and columns, upright."""
    orientation: int


def decode_strictly(content: bytes, name: str) -> DecodedImage:
    """Decode an image completely; any damage is an error."""
    cost = decode_cost(content, name)
    if cost.doubt:
        pixels, found = run_guarded({"task": "strict", "name": name}, content)
        rows, columns = found["size"]
        return DecodedImage(pixels, found["format"], found["mode"], (rows, columns), found["orientation"])
    with reserve_memory(cost.memory):
        return decode_strictly_here(content, name)


def decode_strictly_here(content: bytes, name: str) -> DecodedImage:
    """Decode in this thread, however long it takes."""
    if content[:3] == JPEG_START:
        decoded = _decode_jpeg(content, name)
        if decoded is not None:
            return decoded
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        check_size(image.height, image.width, name)
        image.verify()  # PNG checksums, which decoding skips
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        image_format, mode, orientation = image.format or "", image.mode, orientation_of(image)
        image.load()
        pixels = to_pixels(image)
    pixels = orient_pixels(pixels, orientation)
    return DecodedImage(pixels, "JPEG" if image_format == "MPO" else image_format, mode, pixels.shape[:2], orientation)


def _decode_jpeg(content: bytes, name: str) -> DecodedImage | None:
    """Decode a JPEG strictly, at an eighth of its size if that is enough: every byte is read all the same."""
    rows, columns, space, _ = simplejpeg.decode_jpeg_header(content)
    check_size(rows, columns, name)
    if space in CMYK_SPACES:
        return None
    orientation = jpeg_orientation(content)
    eighths = next((n for n in (1, 2, 4) if min(rows, columns) * n // 8 >= MIN_JPEG_SIDE), 8)
    least = {"min_height": -(-rows * eighths // 8), "min_width": -(-columns * eighths // 8)}
    pixels = simplejpeg.decode_jpeg(content, colorspace="rgb", strict=True, **least)
    size = (columns, rows) if orientation > 4 else (rows, columns)
    mode = "L" if space.casefold() == "gray" else "RGB"
    return DecodedImage(orient_pixels(pixels, orientation), "JPEG", mode, size, orientation)
