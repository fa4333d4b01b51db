"""An npz of arrays: x_train, y_train, x_test, y_test as in Keras; train_images, train_labels; or images and labels."""

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
MAX_RATIO = 200  # unpacked to packed size, beyond the first few megabytes
SMALL = 64 * 2**20
SPLIT_KEYS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
PAIRS = (("x", "y"), ("X", "y"), ("images", "labels"), ("image", "label"), ("data", "labels"), ("data", "target"))
NAMES = ("names", "class_names", "classes", "label_names", "target_names")


def recognise(location: str) -> bool:
    """Whether this is an .npz file."""
    return location.lower().endswith(".npz") and Path(location).is_file()


def open_source(location: str) -> Table:
    """The arrays of all splits. Object arrays are refused, and sizes are checked before anything is read."""
    path = Path(location)
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as archive:
            keys = set(archive.files)
            parts = [Part(split, archive[images], archive[labels]) for split, images, labels in _find_pairs(keys)]
            names_key = next((name for name in NAMES if name in keys), None)
            class_names = [str(name) for name in archive[names_key].tolist()] if names_key else None
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever zipfile, zlib and NumPy raise
        raise DataError(f"{path} is not an intact npz of arrays.", got=brief(error), hint="a fresh copy.") from None
    if not parts:
        raise DataError(
            f"{path} has no arrays named like images and labels.",
            got=f"{', '.join(sorted(keys)[:8])}.",
            hint="x_train and y_train, train_images and train_labels, or images and labels.",
        )
    return open_arrays(parts, str(path), root=path, class_names=class_names)


def _find_pairs(keys: set[str]) -> list[tuple[int, str, str]]:
    """The split, image key and label key of each split, or of the whole if there are no splits."""
    pairs = []
    for number, split in enumerate(SPLITS):
        candidates = [
            (images, labels)
            for word in SPLIT_KEYS[split]
            for x, y in PAIRS
            for images, labels in ((f"{x}_{word}", f"{y}_{word}"), (f"{word}_{x}", f"{word}_{y}"))
        ]
        pairs += [(number, *pair) for pair in candidates if keys.issuperset(pair)][:1]
    return pairs or [(NO_SPLIT, *pair) for pair in PAIRS if keys.issuperset(pair)][:1]


def _check_sizes(path: Path) -> None:
    """Refuse a file whose arrays would be out of proportion to its size; reads only the headers."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                version = npy.read_magic(file)
                read_header: Any = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, _, dtype = read_header(file)
            if dtype.hasobject:
                raise DataError(f"{path} holds objects, which could run code.", got=info.filename, hint="plain arrays.")
            total += int(np.prod([int(side) for side in shape], dtype=object)) * dtype.itemsize
    if total > MAX_BYTES or total > SMALL + MAX_RATIO * path.stat().st_size:
        raise DataError(
            f"{path} is too large to unpack.",
            got=f"{path.stat().st_size:,} bytes that unpack to {total:,}.",
            hint=f"at most {MAX_BYTES // 2**30} GiB.",
        )
