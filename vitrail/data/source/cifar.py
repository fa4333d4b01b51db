"""CIFAR-10 and CIFAR-100 in binary form: each record is a label (two for CIFAR-100) and 3 x 32 x 32 bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.arrays import Part, open_arrays
from vitrail.data.table import Table
from vitrail.errors import DataError

PIXELS = 3 * 32 * 32
TRAIN, TEST = 0, 2
CIFAR10_FILES = {TRAIN: [f"data_batch_{number}.bin" for number in range(1, 6)], TEST: ["test_batch.bin"]}
CIFAR100_FILES = {TRAIN: ["train.bin"], TEST: ["test.bin"]}
CIFAR10_NAMES, CIFAR100_NAMES = "batches.meta.txt", "fine_label_names.txt"


def recognise(location: str) -> bool:
    """Whether this is a folder with the files of CIFAR-10 or CIFAR-100."""
    folder = Path(location)
    return _is_cifar10(folder) or all((folder / name).is_file() for (name,) in CIFAR100_FILES.values())


def open_source(location: str) -> Table:
    """The train and test images; CIFAR-100 with its fine labels."""
    folder = Path(location)
    cifar10 = _is_cifar10(folder)
    parts = []
    for split, names in (CIFAR10_FILES if cifar10 else CIFAR100_FILES).items():
        batches = [_read_records(folder / name, 1 if cifar10 else 2) for name in names if (folder / name).is_file()]
        if batches:
            records = np.concatenate(batches)
            images = records[:, -PIXELS:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            parts.append(Part(split, np.ascontiguousarray(images), records[:, -PIXELS - 1]))
    class_names = _read_class_names(folder / (CIFAR10_NAMES if cifar10 else CIFAR100_NAMES))
    return open_arrays(parts, str(folder), root=folder, class_names=class_names)


def _is_cifar10(folder: Path) -> bool:
    return (folder / CIFAR10_FILES[TRAIN][0]).is_file()


def _read_records(path: Path, num_labels: int) -> Any:
    length = num_labels + PIXELS
    size = path.stat().st_size
    if size % length or not size:
        raise DataError(
            f"{path} is damaged or truncated.",
            got=f"{size:,} bytes, not a multiple of {length:,}.",
            hint="a fresh copy.",
        )
    return np.fromfile(path, dtype=np.uint8).reshape(-1, length)


def _read_class_names(path: Path) -> list[str] | None:
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [line.strip() for line in lines if line.strip()]
