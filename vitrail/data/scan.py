"""One look at one picture, stricter than training: is it whole, what is it, and what does it look like from afar?"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from vitrail.data.cache import digest
from vitrail.data.decode import (
    FORMATS,
    FOUR_COLOURS,
    JPEG_START,
    Pixels,
    as_pixels,
    check_size,
    jpeg_orientation,
    orientation_of,
    to_rgb,
    turned,
    upright,
)
from vitrail.data.duplicates import COLOUR_SIDE, SIDE, Thumbnail
from vitrail.data.resize import resize, to_image
from vitrail.data.table import Content, Finding, Item
from vitrail.errors import VitrailError, brief

SHORT = 96  # pixels that a JPEG is reduced to, at least, before it is looked at from afar
SMALL = 64  # pixels of a side below which pictures look alike without being the same
BLANK = 1.0  # levels that a picture differs from one colour, at most, to be called blank
SUFFIX_FORMATS = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".png": "PNG", ".webp": "WEBP",
    ".bmp": "BMP", ".gif": "GIF", ".tif": "TIFF", ".tiff": "TIFF",
}  # fmt: skip
IMPOSTORS = {
    b"%!PS": "an EPS drawing", b"\xc5\xd0\xd3\xc6": "an EPS drawing", b"%PDF": "a PDF", b"PK\x03\x04": "a zip",
    b"\x1f\x8b": "a gzip", b"<svg": "an SVG drawing", b"<?xml": "an SVG drawing or other XML", b"<!DO": "a web page",
    b"<htm": "a web page", b"8BPS": "a Photoshop file", b"MZ": "a program", b"\x7fELF": "a program",
}  # fmt: skip


BLAMED = {"too large": "oversized", "no plain file": "special", "encrypted": "unreadable"}


@dataclass(frozen=True, slots=True)
class Scan:
    """What was seen of one picture; `problem` if it cannot be used."""

    index: int
    name: str
    labels: tuple[int, ...]
    problem: Finding | None = None
    remark: Finding | None = None
    """Something odd about a picture that can be used."""
    key: bytes = b""
    format: str = ""
    mode: str = ""
    size: tuple[int, int] = (0, 0)
    """Rows and columns, upright."""
    orientation: int = 1
    look: Thumbnail | None = None
    """None if the picture is too small or too even to be compared by its looks."""


class _Seen(NamedTuple):
    pixels: Pixels
    format: str
    mode: str
    size: tuple[int, int]
    orientation: int


def scan_item(picture: Item) -> Scan:
    """Read one picture whole and look at it; what the picture itself is to blame for becomes its `problem`."""
    plain = Scan(picture.index, picture.name, picture.labels)
    content: Content = b""
    try:
        content = picture.content()
        seen = _see(content, picture.name)
    except Exception as error:  # noqa: BLE001 - fuzzing finds ever new ones in decoders
        return replace(plain, problem=Finding(picture.name, *_blame(error, content)))
    return _described(plain, content, seen)


def _blame(error: Exception, content: Content) -> tuple[str, str]:
    """The kind and the detail of what is wrong with a picture, from what was raised over it."""
    said = brief(error).rstrip(".")
    cut = any(word in said.lower() for word in ("truncat", "premature", "eof", "unexpected end", "not enough"))
    match error:
        case FileNotFoundError():
            return "missing", "there is no such file"
        case UnidentifiedImageError():
            return ("not-a-picture", _impostor(bytes(content))) if len(content) else ("empty", "a file of 0 bytes")
        case OSError() if error.errno is not None:
            return "unreadable", error.strerror or str(error)
        case Image.DecompressionBombError() | Image.DecompressionBombWarning():
            pixels = re.search(r"\d+", said)
            return "oversized", f"{int(pixels[0]) // 10**6} megapixels" if pixels else said
        case VitrailError():
            kind = next((kind for words, kind in BLAMED.items() if words in error.wrong), "damaged")
            return kind, (error.got or error.wrong).rstrip(".")
    return "truncated" if cut else "damaged", said


def _described(plain: Scan, content: Content, seen: _Seen) -> Scan:
    even = max(float(np.ptp(seen.pixels[:, :, band])) for band in range(seen.pixels.shape[2])) <= BLANK
    remark = None
    suffix = PurePosixPath(plain.name).suffix.lower()
    if even:
        remark = Finding(plain.name, "blank", "every pixel has the same colour")
    elif seen.format and SUFFIX_FORMATS.get(suffix, seen.format) != seen.format:
        remark = Finding(plain.name, "wrong-suffix", f"a {seen.format} file with the ending {suffix}")
    return replace(
        plain,
        remark=remark,
        key=digest(content),
        format=seen.format,
        mode=seen.mode,
        size=seen.size,
        orientation=seen.orientation,
        look=None if even or min(seen.size) < SMALL else _look(seen.pixels),
    )


def _look(pixels: Pixels) -> Thumbnail:
    thumbnail = to_image(resize(pixels, SIDE, SIDE, "bilinear")).convert("RGB").convert("YCbCr")
    light, *colours = (np.asarray(band) for band in thumbnail.split())
    step = SIDE // COLOUR_SIDE
    blocks = [band.reshape(COLOUR_SIDE, step, COLOUR_SIDE, step).mean(axis=(1, 3)) for band in colours]
    return Thumbnail(light, np.rint(np.stack(blocks)).astype(np.uint8))


def _see(content: Content, name: str) -> _Seen:
    if isinstance(content, np.ndarray):
        pixels = as_pixels(content)
        return _Seen(pixels, "", "L" if content.ndim == 2 or content.shape[2] == 1 else "RGB", pixels.shape[:2], 1)
    if content[:3] == JPEG_START:
        seen = _see_jpeg(content, name)
        if seen is not None:
            return seen
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        check_size(image.height, image.width, name)
        image.verify()  # the sums of PNG, which decoding passes over
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        form, mode, orientation = image.format or "", image.mode, orientation_of(image)
        image.load()
        pixels = np.array(upright(to_rgb(image), orientation))
    return _Seen(pixels, "JPEG" if form == "MPO" else form, mode, pixels.shape[:2], orientation)


def _see_jpeg(content: bytes, name: str) -> _Seen | None:
    """A JPEG in full strictness, at an eighth of its size if that is enough: every byte is read all the same."""
    rows, columns, space, _ = simplejpeg.decode_jpeg_header(content)
    check_size(rows, columns, name)
    if space in FOUR_COLOURS:
        return None
    orientation = jpeg_orientation(content)
    eighths = next((n for n in (1, 2, 4) if min(rows, columns) * n // 8 >= SHORT), 8)
    least = {"min_height": -(-rows * eighths // 8), "min_width": -(-columns * eighths // 8)}
    pixels = simplejpeg.decode_jpeg(content, colorspace="rgb", strict=True, **least)
    size = (columns, rows) if orientation > 4 else (rows, columns)
    return _Seen(turned(pixels, orientation), "JPEG", "L" if space.casefold() == "gray" else "RGB", size, orientation)


def _impostor(content: bytes) -> str:
    """What a file that is no picture seems to be."""
    start = content[:256].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for magic, what in IMPOSTORS.items():
        if start.startswith(magic.lower()):
            return what
    try:
        content[:512].decode("utf-8")
    except UnicodeDecodeError:
        return f"no picture that Vitrail reads; it begins with {content[:8]!r}"
    return "zeros" if not content[:512].strip(b"\0") else "a text"
