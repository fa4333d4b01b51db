"""What an image will cost to decode, from its headers, before anything is decoded.

A small file can keep a decoder busy for minutes: a JPEG of thousands of scans, a TIFF of single-pixel tiles, a million
empty PNG chunks. What headers show to be hopeless is refused. What they cannot bound is decoded in a guard process
(guard.py). Everything else, which is nearly every image there is, is decoded in the calling thread. No walk takes more
steps than a few thousand, however large the file.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from PIL import _imaging

from vitrail.errors import DataError

MAX_SCANS = 200  # of a JPEG; encoders write about 10
MAX_SCANNED = 3 * 10**9  # pixels of all scans of a JPEG together
MAX_SEGMENTS = 1000  # of a JPEG before its first scan
MAX_PNG_CHUNKS = 8192  # that are shorter than a kilobyte on average
MAX_RLE_PIXELS, MAX_RLE_BYTES = 10_000_000, 2**22  # of a run-length-encoded BMP, which Pillow decodes in Python
MAX_TIFF_PARTS = 65_536  # tiles or strips
MAX_PART_BYTES = 128 * 2**20  # of a decoded tile or strip
USUAL_SEGMENTS, USUAL_BLOCKS, USUAL_TAGS, USUAL_PARTS = 64, 256, 512, 4096
USUAL_METADATA = 2**18  # bytes of text, profiles and EXIF
USUAL_EXIF = 2**16
LARGE = 32 * 2**20  # bytes in memory from which decodes are counted together
MEMORY = 288 * 2**20  # bytes that all decodes of a process may use together; a larger one has to be alone
TIFF_STARTS = {b"II*\0": "<", b"MM\0*": ">"}
TIFF_TYPE_BYTES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4)
TIFF_COMPRESSIONS = (1, 5, 8, 32773, 32946)  # none, LZW, deflate, PackBits; others contain whole images of their own
UNUSUAL_HEADER = "an unusual header"


class Cost(NamedTuple):
    """What decoding will take."""

    seconds: float = 0.0
    """An estimate, for photos on a laptop."""
    memory: int = 0
    """Bytes at the peak."""
    doubt: str = ""
    """Why headers cannot bound it; empty if they do."""
    size: tuple[int, int] = (0, 0)
    """Rows and columns, as stored."""


def decode_cost(content: bytes, name: str = "the image") -> Cost:
    """What an encoded image costs; raises an error if it is more than any image needs."""
    walk = next((walk for start, walk in WALKS.items() if content.startswith(start)), None)
    if walk is None:
        return Cost(doubt=UNUSUAL_HEADER if content[:2] in (b"II", b"MM") else "")  # BigTIFF, or no image at all
    try:
        return walk(content, name)
    except (struct.error, IndexError):  # it ends within its headers
        return Cost(doubt=UNUSUAL_HEADER)


def too_costly(name: str, got: str) -> DataError:
    """The error for an image that would take too much time or memory."""
    return DataError(f"{name} is too costly to decode.", got=f"{got}.", hint="re-saving it as an ordinary JPEG or PNG.")


def _jpeg_cost(content: bytes, name: str) -> Cost:
    position, num, num_exif, photoshop_bytes, frame = 2, 0, 0, 0, None
    while num < MAX_SEGMENTS:
        start, marker, length = struct.unpack_from(">BBH", content, position)
        if start != 0xFF or marker in (0x00, 0xFF) or 0xD0 <= marker <= 0xD9:
            return Cost(doubt=UNUSUAL_HEADER)
        if marker == 0xDA:
            break
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            frame = (marker, *struct.unpack_from(">BHHB", content, position + 4))
        num_exif += marker == 0xE1 and content[position + 4 : position + 8] == b"Exif"
        photoshop_bytes += length * (marker == 0xED)
        num += 1
        position += 2 + length
    else:
        raise too_costly(name, f"more than {MAX_SEGMENTS:,} segments before the first scan")
    if frame is None:
        return Cost(doubt=UNUSUAL_HEADER)
    marker, precision, rows, columns, num_channels = frame
    pixels, scans = rows * columns, 1
    if marker == 0xC2 or content[position + 4] < num_channels:
        scans = content.count(b"\xff\xda", position)  # which entropy-coded data cannot contain
        if scans > MAX_SCANS or scans * pixels > MAX_SCANNED:
            raise too_costly(name, f"{scans:,} scans of {pixels / 10**6:,.1f} megapixels")
    usual = marker <= 0xC2 and precision == 8 and num_exif <= 1 and photoshop_bytes <= USUAL_METADATA
    doubt = "" if usual and num <= USUAL_SEGMENTS else "unusual segments"
    memory = pixels * (3 + (2 * num_channels if scans > 1 else 0) + (5 if num_channels == 4 else 0))
    return Cost(pixels * (4 + 1.5 * scans) * 1e-9, memory, doubt, (rows, columns))


def _png_cost(content: bytes, name: str) -> Cost:
    if content[12:16] != b"IHDR":
        return Cost(doubt=UNUSUAL_HEADER)
    columns, rows, depth, colour = struct.unpack_from(">IIBB", content, 16)
    position, num, num_texts, metadata, exif = 8, 0, 0, 0, 0
    most, end = max(MAX_PNG_CHUNKS, len(content) // 1024), len(content) - 8
    unpack = struct.Struct(">I4s").unpack_from
    while position <= end and num <= most:
        length, kind = unpack(content, position)
        if kind in (b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"eXIf"):
            num_texts, metadata, exif = num_texts + 1, metadata + length, exif + length * (kind == b"eXIf")
        num += 1
        position += 12 + length
    if num > most:
        raise too_costly(name, f"more than {most:,} chunks")
    usual = num <= USUAL_BLOCKS + len(content) // 1024 and num_texts <= USUAL_SEGMENTS and exif <= USUAL_EXIF
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 4)
    stored = channels * (2 if depth == 16 else 1)
    decoded = stored if channels == 1 else 4
    pixels = rows * columns
    doubt = "" if usual and metadata <= USUAL_METADATA else "unusual chunks"
    return Cost(pixels * (3 + 10 * stored) * 1e-9, pixels * (decoded + 3), doubt, (rows, columns))


def _webp_cost(content: bytes, _name: str) -> Cost:
    kind, doubt = content[12:16], ""
    if kind == b"VP8X":
        columns, rows = (1 + int.from_bytes(content[start : start + 3], "little") for start in (24, 27))
        doubt = _doubt_webp_chunks(content)
    elif kind == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        columns, rows = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif kind == b"VP8 ":
        columns, rows = (side & 0x3FFF for side in struct.unpack_from("<HH", content, 26))
    else:
        return Cost(doubt=UNUSUAL_HEADER)
    # libwebp draws on two canvases of four channels; Pillow copies the result twice.
    return Cost(rows * columns * 45e-9, rows * columns * 16, doubt, (rows, columns))


def _doubt_webp_chunks(content: bytes) -> str:
    position = 12
    for _ in range(USUAL_SEGMENTS):
        if position + 8 > len(content):
            return ""
        kind, length = struct.unpack_from("<4sI", content, position)
        if kind in (b"EXIF", b"XMP ", b"ICCP") and length > (USUAL_EXIF if kind == b"EXIF" else USUAL_METADATA):
            break
        position += 8 + length + length % 2
    return "unusual chunks"


def _gif_cost(content: bytes, _name: str) -> Cost:
    columns, rows, flags = struct.unpack_from("<HHB", content, 6)
    position = 13 + (3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0)
    for _ in range(USUAL_BLOCKS):
        if content[position] == 0x2C:  # the first frame, which may be larger than the canvas
            left, above, frame_columns, frame_rows = struct.unpack_from("<HHHH", content, position + 1)
            rows, columns = max(rows, above + frame_rows), max(columns, left + frame_columns)
            return Cost(rows * columns * 15e-9, rows * columns * 4, "", (rows, columns))
        if content[position] == 0x21:
            position += 2
        position += 1 + content[position]  # a block of an extension; an empty one ends it
    return Cost(doubt="unusual extensions")


def _bmp_cost(content: bytes, name: str) -> Cost:
    (header,) = struct.unpack_from("<I", content, 14)
    if header == 12:
        columns, rows, _, bits = struct.unpack_from("<HHHH", content, 18)
        compression = 0
    else:
        columns, rows, _, bits, compression = struct.unpack_from("<iiHHI", content, 18)
    pixels = abs(rows * columns)
    size = abs(rows), abs(columns)
    if compression in (1, 2):
        if pixels > MAX_RLE_PIXELS or len(content) > MAX_RLE_BYTES:
            raise too_costly(name, f"{pixels / 10**6:,.1f} megapixels in {len(content):,} run-length-encoded bytes")
        return Cost(pixels * 80e-9 + len(content) * 500e-9, pixels * 6, "run-length encoding", size)
    return Cost(pixels * 3e-9, pixels * (4 if bits <= 8 else 7), "" if compression in (0, 3) else UNUSUAL_HEADER, size)


def _tiff_cost(content: bytes, name: str) -> Cost:
    order = TIFF_STARTS[content[:4]]
    (start,) = struct.unpack_from(f"{order}I", content, 4)
    (num,) = struct.unpack_from(f"{order}H", content, start)
    if num > USUAL_TAGS:
        return Cost(doubt="unusual tags")
    tags: dict[int, int] = {}
    total = 0
    for tag, kind, count, value in struct.iter_unpack(f"{order}HHI4s", content[start + 2 : start + 2 + 12 * num]):
        size = TIFF_TYPE_BYTES[kind] if kind < len(TIFF_TYPE_BYTES) else 0
        total += size * count
        if size in (2, 4):  # of a list that is stored elsewhere, a lower bound is enough: see `bits` below
            tags[tag] = struct.unpack_from(f"{order}{'H' if size == 2 else 'I'}", value)[0] if size * count <= 4 else 0
    columns, rows = tags.get(256, 0), tags.get(257, 0)
    pixels, channels = rows * columns, max(1, tags.get(277, 1))
    stored = channels * max(1, (tags.get(258, 0) or 16) // 8)
    tiled = 322 in tags
    part_columns = max(1, tags[322]) if tiled else max(1, columns)
    part_rows = max(1, tags.get(323, 1)) if tiled else min(max(1, rows), tags.get(278, rows) or rows or 1)
    num_parts = -(-rows // part_rows) * -(-columns // part_columns) * (channels if tags.get(284) == 2 else 1)
    compression = tags.get(259, 1)
    part = 0 if compression == 1 else part_rows * part_columns * stored
    if num_parts > MAX_TIFF_PARTS:
        raise too_costly(name, f"{num_parts:,} tiles or strips")
    if part > MAX_PART_BYTES:
        raise too_costly(name, f"a tile or strip of {part / 2**20:,.0f} MiB")
    usual = compression in TIFF_COMPRESSIONS and (num_parts <= USUAL_PARTS or not tiled) and silence_libtiff()
    doubt = "" if usual and total <= len(content) + USUAL_METADATA else "unusual tags"
    decoded = pixels * max(4, stored if channels == 1 else 4)
    memory = decoded + max(part, 3 * pixels)
    return Cost(pixels * stored * 5e-9 + num_parts * 15e-6, memory, doubt, (rows, columns))


WALKS = {
    b"\xff\xd8\xff": _jpeg_cost,
    b"\x89PNG\r\n\x1a\n": _png_cost,
    b"RIFF": _webp_cost,
    b"GIF": _gif_cost,
    b"BM": _bmp_cost,
    **dict.fromkeys(TIFF_STARTS, _tiff_cost),
}
"""How to walk the headers of a file, by its first bytes."""


@cache
def silence_libtiff() -> bool:
    """Keep libtiff from printing to standard error what is wrong with a file; False if it cannot be reached."""
    try:
        library = ctypes.CDLL(_imaging.__file__)  # which also finds the libraries that it is linked with
        for name in ("TIFFSetErrorHandler", "TIFFSetErrorHandlerExt", "TIFFSetWarningHandler"):
            setter = library[name]
            setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
            setter(None)
    except (OSError, AttributeError):
        return False
    return True


class _Memory:
    """The bytes that decodes in progress use together; the threads of a process share it."""

    def __init__(self) -> None:
        self.used = 0
        self.changed = threading.Condition()

    @contextmanager
    def reserve(self, num_bytes: int) -> Iterator[None]:
        """Wait until so many bytes are free, or everything is."""
        with self.changed:
            self.changed.wait_for(lambda: not self.used or self.used + num_bytes <= MEMORY)
            self.used += num_bytes
        try:
            yield
        finally:
            with self.changed:
                self.used -= num_bytes
                self.changed.notify_all()


_memory = _Memory()


@contextmanager
def reserve_memory(num_bytes: int) -> Iterator[None]:
    """Decode within this, so that the large images of all threads together stay within `MEMORY`."""
    if num_bytes < LARGE:
        yield
    else:
        with _memory.reserve(num_bytes):
            yield
