"""CIFAR-10 and CIFAR-100 in their binary layout: records of a label (two for CIFAR-100) and 3 x 32 x 32 bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.arrays import Part, open_arrays
from vitrail.data.table import Table
from vitrail.errors import DataError

PIXELS = 3 * 32 * 32
TRAIN, TEST = 0, 2
TEN = {TRAIN: [f"data_batch_{number}.bin" for number in range(1, 6)], TEST: ["test_batch.bin"]}
HUNDRED = {TRAIN: ["train.bin"], TEST: ["test.bin"]}
NAMES_OF_TEN, NAMES_OF_HUNDRED = "batches.meta.txt", "fine_label_names.txt"


def recognise(word: str) -> bool:
    """A folder with the files of either."""
    folder = Path(word)
    return (folder / TEN[TRAIN][0]).is_file() or all((folder / name).is_file() for (name,) in HUNDRED.values())


def open_source(word: str) -> Table:
    """Train and test; the fine labels of CIFAR-100."""
    folder = Path(word)
    ten = (folder / TEN[TRAIN][0]).is_file()
    parts = []
    for split, names in (TEN if ten else HUNDRED).items():
        found = [_read(folder / name, 1 if ten else 2) for name in names if (folder / name).is_file()]
        if found:
            records = np.concatenate(found)
            images = records[:, -PIXELS:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            parts.append(Part(split, np.ascontiguousarray(images), records[:, -PIXELS - 1]))
    return open_arrays(parts, str(folder), root=folder, class_names=_names(folder, ten=ten))


def _read(path: Path, num_labels: int) -> Any:
    length = num_labels + PIXELS
    size = path.stat().st_size
    if size % length or not size:
        raise DataError(
            f"{path} is damaged or cut short.", got=f"{size:,} bytes, no multiple of {length:,}.", hint="a new copy."
        )
    return np.fromfile(path, dtype=np.uint8).reshape(-1, length)


def _names(folder: Path, *, ten: bool) -> list[str] | None:
    path = folder / (NAMES_OF_TEN if ten else NAMES_OF_HUNDRED)
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [line.strip() for line in lines if line.strip()]
