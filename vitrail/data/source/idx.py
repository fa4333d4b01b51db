"""The idx files of MNIST and similar datasets: a folder with train-images-idx3-ubyte and so on, plain or gzipped."""

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
UINT8 = 0x08  # its type code
MAX_BYTES = 4 * 2**30
MAX_RATIO = 200  # unpacked to packed size, beyond the first megabyte
SMALL = 2**20
FASHION = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


def recognise(location: str) -> bool:
    """Whether this is a folder with idx files, or one of them."""
    path = Path(location)
    return bool(_find_pairs(path if path.is_dir() else path.parent)) and (path.is_dir() or "-ubyte" in path.name)


def open_source(location: str) -> Table:
    """The images of all splits present."""
    path = Path(location)
    folder = path if path.is_dir() else path.parent
    parts = [
        Part(split, _read_array(images, 3), _read_array(labels, 1)) for split, images, labels in _find_pairs(folder)
    ]
    fashion = "fashion" in folder.resolve().name.casefold()
    return open_arrays(parts, str(path), root=folder, class_names=FASHION if fashion else None)


def _find_pairs(folder: Path) -> list[tuple[int, Path, Path]]:
    """The split, image file and label file of each split present."""
    pairs = []
    for split, stems in STEMS.items():
        candidates = [
            [folder / f"{stem}-{kind}{suffix}" for stem in stems for kind in kinds for suffix in ("", ".gz")]
            for kinds in (IMAGES, LABELS)
        ]
        images, labels = ([path for path in paths if path.is_file()] for paths in candidates)
        if images and labels:
            pairs.append((split, images[0], labels[0]))
    return pairs


def _read_array(path: Path, num_dims: int) -> Any:
    """The array of a file; its header is checked against the file's size before anything is allocated."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * num_dims)
            if header[:4] != bytes((0, 0, UINT8, num_dims)) or len(header) != 4 + 4 * num_dims:
                raise DataError(
                    f"{path} is not an idx file of {num_dims} dimensions.",
                    got=f"a file that starts with {header[:4]!r}.",
                    hint="a fresh copy.",
                )
            shape = tuple(int(side) for side in np.frombuffer(header[4:], dtype=">u4"))
            size = int(np.prod(shape, dtype=object))
            if size > MAX_BYTES or size > SMALL + MAX_RATIO * path.stat().st_size:
                raise DataError(f"{path} is too large.", got=f"{size:,} bytes in its header.", hint="a fresh copy.")
            body = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or truncated.", got=brief(error), hint="a fresh copy.") from None
    if len(body) != size:
        raise DataError(
            f"{path} is damaged or truncated.", got=f"not the {size:,} bytes its header claims.", hint="a fresh copy."
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)
