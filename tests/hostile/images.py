"""Images that cost far more to decode than their size suggests, each made by a function; to add one, add a function.

A function takes the numbers that make it costly, with the full-size ones as defaults: the benchmark uses those, the
tests a twin (`TWINS`) that is refused or ended for the same reason. Nothing here decodes anything.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image

Maker = Callable[..., bytes]
SIDE = 6300  # a square of nearly 40 megapixels


def jpeg_scans(scans: int = 2000, side: int = 3000) -> bytes:
    """A valid progressive JPEG in grey whose scans add nothing: runs of blocks without coefficients."""
    frame = struct.pack(">BHHB3B", 8, side, side, 1, 1, 0x11, 0)
    tables = bytes([0x00, 1, *[0] * 15, 0x00]) + bytes([0x10, 1, *[0] * 15, 0xE0])  # a code of one bit each
    blocks = (-(-side // 8)) ** 2
    runs = ("0" + "1" * 14) * -(-blocks // 32767)  # each of 32,767 blocks
    dc = _segment(0xDA, bytes([1, 1, 0x00, 0, 0, 0])) + _bits("0" * blocks)
    ac = _segment(0xDA, bytes([1, 1, 0x00, 1, 63, 0])) + _bits(runs)
    head = _segment(0xDB, bytes([0, *[1] * 64])) + _segment(0xC2, frame) + _segment(0xC4, tables)
    return b"\xff\xd8" + head + dc + ac * (scans - 1) + b"\xff\xd9"


def jpeg_many_scans(scans: int = 30_000) -> bytes:
    """More scans in less time to decode each."""
    return jpeg_scans(scans, 2000)


def jpeg_exif_segments(num: int = 10_000, size: int = 1000) -> bytes:
    """A good JPEG after very many EXIF segments, which Pillow joins one by one."""
    return _insert(_good("JPEG"), 2, _segment(0xE1, b"Exif\0\0" + bytes(size - 6)) * num)


def jpeg_tiny_segments(num: int = 400_000) -> bytes:
    """As many segments as fit."""
    return jpeg_exif_segments(num, 8)


def jpeg_photoshop_blocks(num: int = 150) -> bytes:
    """Photoshop segments of tiny blocks, which Pillow walks in Python."""
    blocks = (b"8BIM" + struct.pack(">HBBI", 1, 0, 0, 0)) * 5400
    return _insert(_good("JPEG"), 2, _segment(0xED, b"Photoshop 3.0\0" + blocks) * num)


def jpeg_fill_bytes(num: int = 9_000_000) -> bytes:
    """A good JPEG with EXIF, and megabytes of padding before its first marker."""
    return _insert(jpeg_exif_segments(1, 100), 2, b"\xff" * num)


def bmp_rle_lines(rows: int = 4800, columns: int = 8000) -> bytes:
    """Ten kilobytes of codes that end a line, most of them after a single pixel."""
    return _bmp(rows, columns, b"\x01\x00\x00\x00" * rows)


def bmp_rle_within_limits(rows: int = 1200, columns: int = 8000) -> bytes:
    """The same within the limits of a header: what remains is for the guard."""
    return bmp_rle_lines(rows, columns)


def bmp_rle4(rows: int = 3000, columns: int = 3000) -> bytes:
    """Runs of half bytes, which Pillow writes pixel by pixel in Python."""
    return _bmp(rows, columns, (b"\xff\x12" * (columns // 255) + b"\x00\x00") * rows, compression=2, bits=4)


def tiff_tiny_tiles(side: int = 1090) -> bytes:
    """An uncompressed TIFF of tiles of one pixel."""
    num = side * side
    tags = {256: side, 257: side, 258: 8, 259: 1, 262: 1, 277: 1, 322: 1, 323: 1}
    offsets, counts = np.full(num, 8, "<u4").tobytes(), np.ones(num, "<u4").tobytes()
    return _tiff(tags, {324: (4, num, offsets), 325: (4, num, counts)})


def tiff_huge_tile(side: int = 60_000) -> bytes:
    """A TIFF of one pixel in a tile of gigabytes."""
    tags = {256: 1, 257: 1, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side}
    return _tiff(tags, {324: (4, 1, struct.pack("<I", 8)), 325: (4, 1, struct.pack("<I", 100))})


def tiff_long_tags(num: int = 10_000, size: int = 5_000_000) -> bytes:
    """Tags that all point at the same megabytes, which Pillow reads once for each."""
    entries = {40_000 + number: (1, size, None) for number in range(num)}
    good = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 8, 279: 64}
    return _tiff(good, entries, padding=size)


def tiff_float(side: int = SIDE) -> bytes:
    """A float TIFF of nearly 40 megapixels in a few hundred kilobytes."""
    return _save(Image.new("F", (side, side), 0.5), "TIFF", compression="tiff_adobe_deflate")


def tiff_damaged(side: int = 200) -> bytes:
    """An LZW TIFF with damaged data, of which libtiff complains to standard error."""
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    content = bytearray(_save(Image.fromarray(pixels), "TIFF", compression="tiff_lzw"))
    content[2000:4000] = b"\xff" * 2000
    return bytes(content)


def png_grey16(side: int = SIDE) -> bytes:
    """A 16-bit grey PNG of nearly 40 megapixels in 80 kilobytes."""
    return _png(side, side, 16, 0, zlib.compress(bytes((2 * side + 1) * side), 9))


def png_rgba16(side: int = SIDE) -> bytes:
    """The most bytes a pixel that a PNG can have."""
    return _png(side, side, 16, 6, zlib.compress(bytes((8 * side + 1) * side), 9))


def png_tiny_chunks(num: int = 800_000) -> bytes:
    """A good PNG with very many empty chunks."""
    return _png(8, 8, 8, 0, zlib.compress(bytes(9 * 8)), extra=_chunk(b"abCd", b"") * num)


def png_empty_data(num: int = 800_000) -> bytes:
    """A good PNG whose data begins with very many empty chunks."""
    return _png(8, 8, 8, 0, zlib.compress(bytes(9 * 8)), extra=_chunk(b"IDAT", b"") * num)


def png_text_bombs(num: int = 2000) -> bytes:
    """Texts of a kilobyte that decompress to a megabyte each."""
    text = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2**20), 9))
    return _png(8, 8, 8, 0, zlib.compress(bytes(9 * 8)), extra=text * num)


def png_profile_bomb(megabytes: int = 1000) -> bytes:
    """A colour profile of a megabyte that decompresses to a gigabyte."""
    deflate = zlib.compressobj(9)
    profile = b"".join(deflate.compress(bytes(2**20)) for _ in range(megabytes)) + deflate.flush()
    return _png(8, 8, 8, 0, zlib.compress(bytes(9 * 8)), extra=_chunk(b"iCCP", b"icc\0\0" + profile))


def png_long_exif(num: int = 20_000, size: int = 1_000_000) -> bytes:
    """EXIF tags that all point at the same megabyte."""
    entries = b"".join(struct.pack("<HHII", 1 + number, 1, size, 8) for number in range(num))
    start = 8 + size
    exif = b"II*\0" + struct.pack("<I", start) + bytes(size) + struct.pack("<H", num) + entries + bytes(4)
    return _png(8, 8, 8, 0, zlib.compress(bytes(9 * 8)), extra=_chunk(b"eXIf", exif))


def gif_comments(num: int = 4_000_000) -> bytes:
    """A comment in blocks of a byte, which Pillow joins one by one."""
    good = _good("GIF")
    return _insert(good, 13 + 3 * 2 ** ((good[10] & 7) + 1), b"\x21\xfe" + b"\x01a" * num + b"\0")


def webp_large(side: int = SIDE) -> bytes:
    """Nearly 40 megapixels of one colour."""
    return _save(Image.new("RGB", (side, side), "green"), "WEBP", method=0, quality=1)


def webp_frames(num: int = 3000) -> bytes:
    """An animation of very many frames."""
    frames = [Image.new("RGB", (16, 16), (37 * number % 256, 11 * number % 256, number % 7)) for number in range(num)]
    return _save(frames[0], "WEBP", save_all=True, append_images=frames[1:], method=0)


FULL: dict[str, Callable[[], bytes]] = {
    maker.__name__: maker
    for maker in (
        jpeg_scans, jpeg_many_scans, jpeg_exif_segments, jpeg_tiny_segments, jpeg_photoshop_blocks, jpeg_fill_bytes,
        bmp_rle_lines, bmp_rle_within_limits, bmp_rle4,
        tiff_tiny_tiles, tiff_huge_tile, tiff_long_tags, tiff_float, tiff_damaged,
        png_grey16, png_rgba16, png_tiny_chunks, png_empty_data, png_text_bombs, png_profile_bomb, png_long_exif,
        gif_comments, webp_large, webp_frames,
    )
}  # fmt: skip
"""Every image, full size."""
TWINS: dict[str, Callable[[], bytes]] = {
    **FULL,
    "jpeg_scans": partial(jpeg_scans, 300, 400),
    "jpeg_many_scans": partial(jpeg_many_scans, 1000),
    "jpeg_exif_segments": partial(jpeg_exif_segments, 1100, 20),
    "jpeg_tiny_segments": partial(jpeg_tiny_segments, 2000),
    "jpeg_photoshop_blocks": partial(jpeg_photoshop_blocks, 5),
    "jpeg_fill_bytes": partial(jpeg_fill_bytes, 10_000),
    "bmp_rle_within_limits": partial(bmp_rle_within_limits, 20, 800),
    "bmp_rle4": partial(bmp_rle4, 30, 300),
    "tiff_tiny_tiles": partial(tiff_tiny_tiles, 300),
    "tiff_long_tags": partial(tiff_long_tags, 600, 5000),
    "tiff_float": partial(tiff_float, 400),
    "png_grey16": partial(png_grey16, 400),
    "png_rgba16": partial(png_rgba16, 200),
    "png_tiny_chunks": partial(png_tiny_chunks, 20_000),
    "png_empty_data": partial(png_empty_data, 20_000),
    "png_text_bombs": partial(png_text_bombs, 100),
    "png_profile_bomb": partial(png_profile_bomb, 300),
    "png_long_exif": partial(png_long_exif, 100, 70_000),
    "gif_comments": partial(gif_comments, 2000),
    "webp_large": partial(webp_large, 400),
    "webp_frames": partial(webp_frames, 200),
}
"""Every image, small enough for a test."""


def _save(image: Image.Image, image_format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


def _good(image_format: str) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return _save(Image.fromarray(pixels), image_format)


def _insert(content: bytes, position: int, part: bytes) -> bytes:
    return content[:position] + part + content[position:]


def _segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(payload)) + payload


def _bits(text: str) -> bytes:
    """Bits as entropy-coded data: filled up with ones, and a zero after each byte of ones."""
    text += "1" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")


def _bmp(rows: int, columns: int, data: bytes, *, compression: int = 1, bits: int = 8) -> bytes:
    palette = bytes(4 * 2**bits)
    header = struct.pack("<IiiHHIIiiII", 40, columns, rows, 1, bits, compression, len(data), 1, 1, 2**bits, 0)
    start = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + header + palette + data


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(rows: int, columns: int, depth: int, colour: int, data: bytes, *, extra: bytes = b"") -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _tiff(tags: dict[int, int], lists: dict[int, tuple[int, int, bytes | None]], *, padding: int = 1000) -> bytes:
    """A little-endian TIFF; a list without data points at the padding."""
    data = bytearray(b"II*\0\0\0\0\0" + bytes(padding))
    entries = [(tag, struct.pack("<HHII", tag, 4, 1, value)) for tag, value in tags.items()]
    for tag, (kind, count, content) in lists.items():
        if content is not None and len(content) <= 4:
            entries.append((tag, struct.pack("<HHI", tag, kind, count) + content))
            continue
        entries.append((tag, struct.pack("<HHII", tag, kind, count, 8 if content is None else len(data))))
        data += content or b""
    data += bytes(len(data) % 2)
    data[4:8] = struct.pack("<I", len(data))
    return bytes(data) + struct.pack("<H", len(entries)) + b"".join(entry for _, entry in sorted(entries)) + bytes(4)
