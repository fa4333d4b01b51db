"""Images, and ways to damage them or to make near-duplicates, for the tests and benchmarks of `check`."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps


def photo(random: np.random.Generator, size: tuple[int, int] = (224, 224)) -> Image.Image:
    """A unique image: soft fields of colour at four scales, and some grain."""
    rows, columns = size[1], size[0]
    pixels = np.zeros((rows, columns, 3))
    for cells in (3, 6, 12, 24):
        field = Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        pixels += np.asarray(field.resize((columns, rows), Image.Resampling.BICUBIC), dtype=np.float64) / 4
    return Image.fromarray(np.clip(pixels + random.normal(0, 3, pixels.shape), 0, 255).astype(np.uint8))


def encoded(image: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **({"quality": 88} if form == "JPEG" else {}), **options)
    return file.getvalue()


def bomb() -> bytes:
    """A PNG of 20,000 x 20,000 pixels in fifty kilobytes."""
    head = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    body = zlib.compress(bytes(2501) * 20_000, 9)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def as_png(jpeg: bytes) -> bytes:
    return encoded(Image.open(io.BytesIO(jpeg)), "PNG")


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :]


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="4"/></svg>'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
PAGE = b"<!DOCTYPE html><html><body>404 Not Found</body></html>"

Damage = tuple[str, str, Callable[[bytes], bytes]]
DAMAGES: dict[str, Damage] = {  # the kind of finding, the new suffix, and what is done to a good JPEG
    "nothing left": ("empty", ".jpg", lambda _: b""),
    "half a JPEG": ("truncated", ".jpg", lambda data: data[: len(data) // 2]),
    "no end marker": ("truncated", ".jpg", lambda data: data[:-2]),
    "the second half zeros": ("truncated", ".jpg", lambda data: data[: len(data) // 2] + bytes(len(data) // 2)),
    "a web page": ("not-an-image", ".jpg", lambda _: PAGE),
    "a text": ("not-an-image", ".jpg", lambda _: b"the picture is on the other disk\n" * 9),
    "an SVG drawing": ("not-an-image", ".png", lambda _: SVG),
    "an EPS drawing": ("not-an-image", ".png", lambda _: EPS),
    "half a PNG": ("truncated", ".png", lambda data: as_png(data)[: len(data) // 2]),
    "a PNG with a wrong byte": ("damaged", ".png", lambda data: flipped(as_png(data))),
    "too many pixels": ("oversized", ".png", lambda _: bomb()),
    "a JPEG called PNG": ("wrong-suffix", ".png", lambda data: data),
    "noise": ("not-an-image", ".jpg", lambda data: np.random.default_rng(len(data)).bytes(999)),
    "half a WebP": ("damaged truncated", ".webp", lambda data: encoded(Image.open(io.BytesIO(data)), "WEBP")[:999]),
}


def damage(path: Path, way: str) -> Path:
    """Damage a good JPEG on disk; returns its new path, because its suffix may have changed."""
    _, suffix, change = DAMAGES[way]
    changed = path.with_suffix(suffix)
    data = change(path.read_bytes())
    path.unlink()
    changed.write_bytes(data)
    return changed


def cropped(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Cropped to 95 % of its width and height, at a random position."""
    width, height = (round(side * 0.95) for side in image.size)
    left, top = random.integers(image.width - width + 1), random.integers(image.height - height + 1)
    return image.crop((left, top, left + width, top + height))


CHANGES: dict[str, Callable[[Image.Image, np.random.Generator], bytes]] = {
    "encoded again": lambda image, random: encoded(image, "JPEG") if random.random() < 0.5 else encoded(image, "PNG"),
    "encoded badly": lambda image, _: encoded(image, "WEBP", quality=30),
    "resized": lambda image, random: encoded(ImageOps.scale(image, float(random.uniform(0.5, 1.5)))),
    "mirrored": lambda image, _: encoded(ImageOps.mirror(image)),
    "cropped": lambda image, random: encoded(cropped(image, random)),
}
