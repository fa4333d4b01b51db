"""Data sets of small noisy pictures: as class folders, as shards and as arrays."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.source import folder, shards
from vitrail.data.table import NO_SPLIT, Stream, Table


def encoded(number: int) -> bytes:
    """A picture that no other number has, 20 to 60 pixels a side, JPEG or PNG by turns."""
    random = np.random.default_rng(number)
    image = Image.fromarray(random.integers(0, 256, (*random.integers(20, 61, 2), 3), dtype=np.uint8))
    file = io.BytesIO()
    image.save(file, "JPEG" if number % 2 else "PNG")
    return file.getvalue()


def write_folder(root: Path, num: int = 37) -> Table:
    """Three classes of pictures in class folders."""
    for number in range(num):
        path = root / "abc"[number % 3] / f"{number:03d}.{'jpg' if number % 2 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
    return folder.open_source(str(root))


def write_shards(root: Path, num: int = 37, num_shards: int = 3, *, broken: int = -1) -> Stream:
    """Three classes of pictures in tar files, a .cls beside each; the `broken` one is no picture."""
    root.mkdir(parents=True, exist_ok=True)
    for shard in range(num_shards):
        with tarfile.open(root / f"{shard:03d}.tar", "w") as archive:
            for number in range(shard, num, num_shards):
                picture = b"nothing" if number == broken else encoded(number)
                for name, content in ((f"{number:03d}.jpg", picture), (f"{number:03d}.cls", b"abc"[number % 3 :][:1])):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return shards.open_source(str(root))


def table_of(labels: list[int], side: int = 8) -> Table:
    """One picture of noise for each label, held in memory."""
    arrays = np.random.default_rng(0).integers(0, 256, (len(labels), side, side, 3), dtype=np.uint8)
    return Table(
        origin="memory",
        names=[f"{row:03d}" for row in range(len(labels))],
        classes=tuple(str(label) for label in range(max(labels) + 1)),
        labels=np.array(labels, dtype=np.int32),
        splits=np.full(len(labels), NO_SPLIT, dtype=np.int8),
        content=arrays.__getitem__,
    )
