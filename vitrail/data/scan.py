"""Scans one image, more strictly than training does: is it intact, what format is it, and how does it look?"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np
from PIL import Image, UnidentifiedImageError

from vitrail.data.cache import digest
from vitrail.data.decode import Pixels, as_pixels
from vitrail.data.duplicates import CHROMA_SIDE, SIDE, Thumbnail
from vitrail.data.resize import resize, to_image
from vitrail.data.strict_decode import DecodedImage, decode_strictly
from vitrail.data.table import Content, Finding, Item
from vitrail.errors import VitrailError, brief

MIN_COMPARED_SIDE = 64  # pixels; smaller images resemble each other without being duplicates
BLANK = 1.0  # levels between the darkest and brightest pixel up to which an image counts as blank
SUFFIX_FORMATS = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".png": "PNG", ".webp": "WEBP",
    ".bmp": "BMP", ".gif": "GIF", ".tif": "TIFF", ".tiff": "TIFF",
}  # fmt: skip
OTHER_FORMATS = {
    b"%!PS": "an EPS drawing", b"\xc5\xd0\xd3\xc6": "an EPS drawing", b"%PDF": "a PDF", b"PK\x03\x04": "a zip",
    b"\x1f\x8b": "a gzip", b"<svg": "an SVG drawing", b"<?xml": "an SVG drawing or other XML", b"<!DO": "a web page",
    b"<htm": "a web page", b"8BPS": "a Photoshop file", b"MZ": "a program", b"\x7fELF": "a program",
}  # fmt: skip


ERROR_KINDS = {
    "too large": "oversized",
    "too costly": "costly",
    "not a regular file": "special",
    "encrypted": "unreadable",
}


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of scanning one image; `problem` is set if it cannot be used."""

    index: int
    name: str
    labels: tuple[int, ...]
    problem: Finding | None = None
    remark: Finding | None = None
    """Something odd about an image that can be used."""
    key: bytes = b""
    format: str = ""
    mode: str = ""
    size: tuple[int, int] = (0, 0)
    """Rows and columns, upright."""
    orientation: int = 1
    thumbnail: Thumbnail | None = None
    """None if the image is too small or blank, and cannot be compared with others."""
    seconds: float = 0.0
    """The length of a clip."""


def scan_item(item: Item) -> Scan:
    """Read and decode one image completely; an error becomes its `problem`."""
    scan = Scan(item.index, item.name, item.labels)
    content: Content = b""
    try:
        content = item.content()
        decoded = _decode(content, item.name)
    except Exception as error:  # noqa: BLE001 - fuzzing keeps finding new ones in decoders
        return replace(scan, problem=Finding(item.name, *_classify_error(error, content)))
    return _fill(scan, content, decoded)


def _classify_error(error: Exception, content: Content) -> tuple[str, str]:
    """The kind and detail of a finding, from the error that an image raised."""
    message = brief(error).rstrip(".")
    truncated = any(word in message.lower() for word in ("truncat", "premature", "eof", "unexpected end", "not enough"))
    match error:
        case FileNotFoundError():
            return "missing", "the file does not exist"
        case UnidentifiedImageError():
            return ("not-an-image", _guess_format(bytes(content))) if len(content) else ("empty", "a file of 0 bytes")
        case OSError() if error.errno is not None:
            return "unreadable", error.strerror or str(error)
        case Image.DecompressionBombError() | Image.DecompressionBombWarning():
            pixels = re.search(r"\d+", message)
            return "oversized", f"{int(pixels[0]) // 10**6} megapixels" if pixels else message
        case VitrailError():
            kind = next((kind for words, kind in ERROR_KINDS.items() if words in error.wrong), "damaged")
            return kind, (error.got or error.wrong).rstrip(".")
    return "truncated" if truncated else "damaged", message


def _fill(scan: Scan, content: Content, decoded: DecodedImage) -> Scan:
    blank = max(float(np.ptp(decoded.pixels[:, :, band])) for band in range(decoded.pixels.shape[2])) <= BLANK
    remark = None
    suffix = PurePosixPath(scan.name).suffix.lower()
    if blank:
        remark = Finding(scan.name, "blank", "every pixel has the same colour")
    elif decoded.format and SUFFIX_FORMATS.get(suffix, decoded.format) != decoded.format:
        remark = Finding(scan.name, "wrong-suffix", f"a {decoded.format} file with the suffix {suffix}")
    return replace(
        scan,
        remark=remark,
        key=digest(content),
        format=decoded.format,
        mode=decoded.mode,
        size=decoded.size,
        orientation=decoded.orientation,
        thumbnail=None if blank or min(decoded.size) < MIN_COMPARED_SIDE else _make_thumbnail(decoded.pixels),
    )


def _make_thumbnail(pixels: Pixels) -> Thumbnail:
    small = to_image(resize(pixels, SIDE, SIDE, "bilinear")).convert("RGB").convert("YCbCr")
    luma, *chroma = (np.asarray(band) for band in small.split())
    step = SIDE // CHROMA_SIDE
    blocks = [band.reshape(CHROMA_SIDE, step, CHROMA_SIDE, step).mean(axis=(1, 3)) for band in chroma]
    return Thumbnail(luma, np.rint(np.stack(blocks)).astype(np.uint8))


def _decode(content: Content, name: str) -> DecodedImage:
    if not isinstance(content, np.ndarray):
        return decode_strictly(content, name)
    pixels = as_pixels(content)
    mode = "L" if content.ndim == 2 or content.shape[2] == 1 else "RGB"
    return DecodedImage(pixels, "", mode, pixels.shape[:2], 1)


def _guess_format(content: bytes) -> str:
    """What a file that is not an image seems to be."""
    start = content[:256].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for magic, what in OTHER_FORMATS.items():
        if start.startswith(magic.lower()):
            return what
    try:
        content[:512].decode("utf-8")
    except UnicodeDecodeError:
        return f"an unknown format that begins with {content[:8]!r}"
    return "zeros" if not content[:512].strip(b"\0") else "a text"
