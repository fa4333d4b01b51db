"""An npz of arrays: x_train, y_train, x_test, y_test as of Keras; train_images, train_labels; or images and labels."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from vitrail.data.arrays import Part, open_arrays
from vitrail.data.table import NO_SPLIT, SPLITS, Table
from vitrail.errors import DataError, brief

MAX_BYTES = 16 * 2**30
MAX_INFLATION = 200  # times that the file may grow when it is unpacked, past the first few megabytes
SMALL = 64 * 2**20
SPLIT_KEYS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
PAIRS = (("x", "y"), ("X", "y"), ("images", "labels"), ("image", "label"), ("data", "labels"), ("data", "target"))
NAMES = ("names", "class_names", "classes", "label_names", "target_names")


def recognise(word: str) -> bool:
    """An npz by its name."""
    return word.lower().endswith(".npz") and Path(word).is_file()


def open_source(word: str) -> Table:
    """The arrays of all splits; nothing in them can be an object, and their sizes are checked before they are read."""
    path = Path(word)
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as archive:
            keys = set(archive.files)
            parts = [Part(split, archive[images], archive[labels]) for split, images, labels in _pairs(keys)]
            found = next((name for name in NAMES if name in keys), None)
            class_names = [str(name) for name in archive[found].tolist()] if found else None
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile's, zlib's and NumPy's own
        raise DataError(f"{path} is no whole npz of arrays.", got=brief(error), hint="a new copy.") from None
    if not parts:
        raise DataError(
            f"{path} has no arrays that can be told to be images and labels.",
            got=f"{', '.join(sorted(keys)[:8])}.",
            hint="x_train and y_train, train_images and train_labels, or images and labels.",
        )
    return open_arrays(parts, str(path), root=path, class_names=class_names)


def _pairs(keys: set[str]) -> list[tuple[int, str, str]]:
    """The keys of images and labels for each split, or without one."""
    pairs = []
    for number, split in enumerate(SPLITS):
        names = [
            (images, labels)
            for word in SPLIT_KEYS[split]
            for x, y in PAIRS
            for images, labels in ((f"{x}_{word}", f"{y}_{word}"), (f"{word}_{x}", f"{word}_{y}"))
        ]
        pairs += [(number, *pair) for pair in names if keys.issuperset(pair)][:1]
    return pairs or [(NO_SPLIT, *pair) for pair in PAIRS if keys.issuperset(pair)][:1]


def _check_sizes(path: Path) -> None:
    """Read the heads alone: what the arrays would take must be in proportion to the file."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                version = npy.read_magic(file)
                read: Any = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, _, kind = read(file)
            if kind.hasobject:
                raise DataError(f"{path} holds objects, which could run code.", got=info.filename, hint="plain arrays.")
            total += int(np.prod([int(side) for side in shape], dtype=object)) * kind.itemsize
    if total > MAX_BYTES or total > SMALL + MAX_INFLATION * path.stat().st_size:
        raise DataError(
            f"{path} is too large to unpack.",
            got=f"{path.stat().st_size:,} bytes that unpack to {total:,}.",
            hint=f"at most {MAX_BYTES // 2**30} GiB.",
        )
