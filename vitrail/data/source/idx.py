"""The idx files of MNIST and its kin: a folder with train-images-idx3-ubyte and the like, plain or in gzip."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.arrays import Part, open_arrays
from vitrail.data.table import Table
from vitrail.errors import DataError, brief

STEMS = {0: ("train",), 1: ("val", "valid", "validation"), 2: ("t10k", "test")}
IMAGES, LABELS = ("images-idx3-ubyte", "images.idx3-ubyte"), ("labels-idx1-ubyte", "labels.idx1-ubyte")
BYTES = 0x08  # the type code of uint8
MAX_BYTES = 4 * 2**30
MAX_INFLATION = 200  # times that a file may grow when it is unpacked, past the first megabyte
SMALL = 2**20
FASHION = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


def recognise(word: str) -> bool:
    """A folder with such files, or one of them."""
    path = Path(word)
    return bool(_pairs(path if path.is_dir() else path.parent)) and (path.is_dir() or "-ubyte" in path.name)


def open_source(word: str) -> Table:
    """The images of all splits that are there."""
    path = Path(word)
    folder = path if path.is_dir() else path.parent
    parts = [Part(split, _read(images, 3), _read(labels, 1)) for split, images, labels in _pairs(folder)]
    fashion = "fashion" in folder.resolve().name.casefold()
    return open_arrays(parts, str(path), root=folder, class_names=FASHION if fashion else None)


def _pairs(folder: Path) -> list[tuple[int, Path, Path]]:
    pairs = []
    for split, stems in STEMS.items():
        found = [
            [folder / f"{stem}-{kind}{ending}" for stem in stems for kind in kinds for ending in ("", ".gz")]
            for kinds in (IMAGES, LABELS)
        ]
        images, labels = ([path for path in paths if path.is_file()] for paths in found)
        if images and labels:
            pairs.append((split, images[0], labels[0]))
    return pairs


def _read(path: Path, num_dims: int) -> Any:
    """The array of a file whose head is checked against its length before anything is made of it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4 + 4 * num_dims)
            if head[:4] != bytes((0, 0, BYTES, num_dims)) or len(head) != 4 + 4 * num_dims:
                raise DataError(
                    f"{path} is no idx file of {num_dims} dimensions.",
                    got=f"a file that begins with {head[:4]!r}.",
                    hint="a new copy.",
                )
            shape = tuple(int(side) for side in np.frombuffer(head[4:], dtype=">u4"))
            num = int(np.prod(shape, dtype=object))
            if num > MAX_BYTES or num > SMALL + MAX_INFLATION * path.stat().st_size:
                raise DataError(f"{path} is too large.", got=f"{num:,} bytes in its head.", hint="a new copy.")
            body = file.read(num + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or cut short.", got=brief(error), hint="a new copy.") from None
    if len(body) != num:
        raise DataError(
            f"{path} is damaged or cut short.", got=f"not the {num:,} bytes of its head.", hint="a new copy."
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)
