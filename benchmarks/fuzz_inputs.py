"""What fuzz.py mutates besides the files of a run: images, data of every layout, clips, and HTTP requests."""

from __future__ import annotations

import io
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from serve import Service

NUMBERS = (
    *(b"\0", b"\xff", b"\0\0", b"\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0"),
    *(b"\0\0\x40\0", b"\x10\x27\0\0", b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"IDAT", b"IEND", b"VP8 ", b"ANMF"),
)
"""Pieces that headers of images are made of: extreme lengths, markers."""
WORDS = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\0", b": ", b"chunked", b"Content-Length: 99999999999", b"Expect: 100-continue"),
    *(b"Transfer-Encoding: chunked", b"--b", b"filename=", b'"', b"%00", b"../", b"?top=", b"-1", b"1e9", b"\xff\xfe"),
)
"""Pieces that requests are made of."""
TABLE_WORDS = (
    b",",
    b"\t",
    b'"',
    b"\n",
    b"\0",
    b"\xff",
    b"../",
    b"/dev/zero",
    b"9" * 30,
    b"-1",
    b"nan",
    b"train",
    b"{}",
)
"""Pieces that tables are made of."""
RESPONSE_SECONDS = 20.0  # above the service's own deadline for receiving a request
MEMORY_EVERY = 1000  # requests
Mutate = Callable[[bytes, random.Random, tuple[bytes, ...]], bytes]


def original_images() -> dict[str, bytes]:
    """A small image in every format and most of their variants."""
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    colours = small.resize((48, 40), Image.Resampling.BICUBIC)
    grey16 = Image.fromarray((np.asarray(colours.convert("L")).astype(np.uint16) * 257).copy())
    palette, alpha = colours.quantize(16), colours.copy()
    alpha.putalpha(128)
    exif = Image.Exif()
    exif[0x0112] = 6
    variants: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "jpeg": (colours, "JPEG", {"exif": exif}),
        "jpeg progressive": (colours, "JPEG", {"progressive": True}),
        "jpeg grey": (colours.convert("L"), "JPEG", {}),
        "jpeg cmyk": (colours.convert("CMYK"), "JPEG", {}),
        "png": (colours, "PNG", {}),
        "png alpha": (alpha, "PNG", {}),
        "png palette": (palette, "PNG", {}),
        "png 16 bits": (grey16, "PNG", {}),
        "webp": (colours, "WEBP", {}),
        "webp lossless": (alpha, "WEBP", {"lossless": True}),
        "webp animated": (colours, "WEBP", {"save_all": True, "append_images": [colours.rotate(90)]}),
        "bmp": (colours, "BMP", {}),
        "bmp palette": (palette, "BMP", {}),
        "gif": (palette, "GIF", {}),
        "gif animated": (palette, "GIF", {"save_all": True, "append_images": [palette.rotate(90)]}),
        "tiff": (colours, "TIFF", {}),
        "tiff lzw": (colours, "TIFF", {"compression": "tiff_lzw"}),
        "tiff deflate": (grey16, "TIFF", {"compression": "tiff_deflate"}),
        "tiff jpeg": (colours, "TIFF", {"compression": "jpeg"}),
        "tiff group4": (colours.convert("1"), "TIFF", {"compression": "group4"}),
    }
    found = {}
    for name, (image, file_format, options) in variants.items():
        buffer = io.BytesIO()
        image.save(buffer, file_format, **options)
        found[name] = buffer.getvalue()
    return found


class ImageInputs:
    """Mutated images, decoded as predict and the loader do, and as check does."""

    def __init__(self, mutate: Mutate) -> None:
        self.mutate, self.originals = mutate, original_images()
        self.names = sorted(self.originals)

    def attempt(self, rng: random.Random) -> tuple[Callable[[], Any], str]:
        """What to start, and the format of the image."""
        from vitrail.data.decode import decode_image
        from vitrail.data.scan import scan_item
        from vitrail.data.table import Item

        name = rng.choice(self.names)
        content = self.mutate(self.originals[name], rng, NUMBERS)

        def decode() -> bool:
            scan_item(Item(0, name, (0,), lambda: content, lambda _: ""))
            return decode_image(content, name=name, target_size=lambda _y, _x: (16, 16)).shape[2] == 3

        return decode, name.split()[0]


class DataInputs:
    """Data of every layout with a mutated file, checked as `vitrail check` does, and clips, read as models do."""

    def __init__(self, place: Path, mutate: Mutate) -> None:
        from tests.contract import small_clips
        from tests.contract.layouts import LAYOUTS, samples

        self.mutate, self.target = mutate, place / "data"
        self.layouts: dict[str, tuple[Path, Path]] = {}
        for name, layout in LAYOUTS.items():
            root = place / "layouts" / name
            root.mkdir(parents=True)
            location = layout.write(root, samples(**layout.options))
            self.layouts[name] = root, Path(location).relative_to(root)
        wave = np.random.default_rng(0).uniform(-0.5, 0.5, 4000).astype(np.float32)
        self.clips = {
            "wav": small_clips.wav(wave, 8000),
            "flac": small_clips.wav(wave, 8000, format="FLAC", subtype="PCM_16"),
            "mp4": small_clips.ramp_video(num_frames=8, sound=wave, sound_rate=8000),
            "avi": small_clips.ramp_video(num_frames=8, format="avi"),
        }
        self.names = sorted((*self.layouts, *self.clips))

    def attempt(self, rng: random.Random) -> tuple[Callable[[], Any], str]:
        """What to start, and the layout or format."""
        name, pieces = rng.choice(self.names), rng.choice((NUMBERS, TABLE_WORDS))
        if name in self.clips:
            content = self.mutate(self.clips[name], rng, pieces)
            return lambda: read_clip(content, name), name
        root, location = self.layouts[name]
        shutil.rmtree(self.target, ignore_errors=True)
        shutil.copytree(root, self.target)
        files = sorted(path for path in self.target.rglob("*") if path.is_file())
        path = rng.choice([path for path in files if path.suffix != ".png"] or files)
        path.write_bytes(self.mutate(path.read_bytes(), rng, pieces))
        return lambda: check_data(self.target / location), name


def check_data(path: Path) -> bool:
    """Open data and check all of it."""
    from vitrail.data.check import check_source
    from vitrail.data.find import open_data

    check_source(open_data(path), workers=1)
    return True


def read_clip(content: bytes, suffix: str) -> bool:
    """Read a clip as a model takes it."""
    from vitrail.data.prepare import sound, video

    name, parts = f"clip.{suffix}", []
    if suffix != "avi":  # which has no sound
        parts.append(sound.Spec(rate=8000, seconds=0.25).read(content, name=name))
    if suffix in ("avi", "mp4"):
        parts.append(video.Spec.of_size((4, 16, 16)).read(content, name=name))
    return all(len(part) for part in parts)


class RequestInputs:
    """Mutated HTTP requests to `vitrail serve`, each on a connection of its own."""

    def __init__(self, run: Path, mutate: Mutate) -> None:
        self.service = Service(str(run), None)
        self.mutate, self.originals = mutate, _original_requests()
        self.names, self.num, self.start = sorted(self.originals), 0, self._memory()

    def attempt(self, rng: random.Random) -> tuple[str, str]:
        """The outcome of a request, and what kind of request it was."""
        name = rng.choice(self.names)
        content = self.mutate(self.originals[name], rng, WORDS)
        outcome = self._send(content)
        self.num += 1
        if self.service.process.poll() is not None:
            outcome = "crash: the service has ended"
        elif not self.num % MEMORY_EVERY and self._memory() > 2 * self.start + 200:
            outcome = f"memory: {self._memory():.0f} MiB after {self.start:.0f}"
        return outcome, name

    def _memory(self) -> float:
        return sum(self.service.memory().values())

    def _send(self, content: bytes) -> str:
        """`ok`, `refused`, or a finding: an internal error, no end of the response."""
        answer = b""
        with socket.create_connection(self.service.place, timeout=RESPONSE_SECONDS) as line:
            try:
                line.sendall(content)
                line.shutdown(socket.SHUT_WR)
                while part := line.recv(65536):
                    answer += part
            except TimeoutError:
                return f"hang: no end of the response within {RESPONSE_SECONDS:g} s"
            except OSError:  # the service has closed the connection before it read everything
                pass
        if not answer:
            return "refused"
        status = answer.split(b" ", 2)[1:2]
        if not answer.startswith(b"HTTP/1.1 ") or not status[0].isdigit():
            return f"no HTTP: {answer[:60]!r}"
        if status[0] == b"500":
            return f"internal error: {answer[-300:]!r}"
        return "ok" if status[0].startswith(b"2") else "refused"


def _original_requests() -> dict[str, bytes]:
    """Good requests of every kind."""
    image = original_images()["jpeg"]  # of which decoders accept more damage than of others
    form = b"".join(
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n%b\r\n' % image for _ in range(2)
    )
    form += b"--b--\r\n"

    def request(line: bytes, body: bytes = b"", kind: bytes = b"application/octet-stream") -> bytes:
        head = b"%b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % line
        if body:
            head += b"Content-Type: %b\r\nContent-Length: %d\r\n" % (kind, len(body))
        return head + b"\r\n" + body

    return {
        "predict": request(b"POST /v1/predict?top=3", image, b"image/jpeg"),
        "form": request(b"POST /v1/predict", form, b"multipart/form-data; boundary=b"),
        "explain": request(b"POST /v1/explain?form=numbers", image, b"image/jpeg"),
        "model": request(b"GET /v1/model"),
        "page": request(b"GET /"),
        "metrics": request(b"GET /metrics"),
    }
