"""Data sets of in-memory pixel arrays, all of one size: a table built from images and labels, split by split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.table import SPLITS, Table, check_names, encode_labels
from vitrail.errors import DataError


class Part(NamedTuple):
    """The arrays of one split: images [n Y X] or [n Y X C], labels [n], both of any integer type."""

    split: int
    images: Any
    labels: Any


def open_arrays(parts: Sequence[Part], origin: str, *, root: Path | None, class_names: Sequence[str] | None) -> Table:
    """One table with the arrays of all splits, in the order of `parts`."""
    if class_names is not None:
        check_names(class_names, origin)
    names: list[str] = []
    labels: list[str] = []
    splits: list[int] = []
    stacks: list[tuple[int, Any]] = []
    for part in parts:
        images = _check_images(part.images, origin)
        numbers = _check_labels(part.labels, len(images), origin)
        if class_names is not None and len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(class_names):
            raise DataError(
                f"{origin} has a label without a class name.",
                got=f"labels {numbers.min()} to {numbers.max()} and {len(class_names)} class names.",
                hint=f"labels 0 to {len(class_names) - 1}.",
            )
        stacks.append((len(names), images))
        prefix = f"{SPLITS[part.split]}/" if part.split >= 0 else ""
        names += [f"{prefix}{row:06d}" for row in range(len(images))]
        labels += [str(number) if class_names is None else str(class_names[number]) for number in numbers.tolist()]
        splits += [part.split] * len(images)
    if not names:
        raise DataError(f"{origin} has no images.", got="empty arrays.", hint="arrays of images and labels.")
    classes, numbers = encode_labels(labels)

    def content(index: int) -> Any:
        start, images = next((start, images) for start, images in reversed(stacks) if start <= index)
        return images[index - start]

    return Table(
        origin=origin,
        names=names,
        classes=classes,
        labels=numbers,
        splits=np.array(splits, dtype=np.int8),
        content=content,
        root=root,
    )


def _check_images(images: Any, origin: str) -> Any:
    """The images with channels last; anything but 8 bits is refused."""
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    channels = images.shape[3] if images.ndim == 4 else 1
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or channels not in (1, 3) or 0 in images.shape[1:]:
        raise DataError(
            f"{origin} has images of the wrong type or shape.",
            got=f"{images.dtype}, shape {tuple(images.shape)}.",
            hint="uint8 of shape (n, rows, columns) or (n, rows, columns, 3).",
        )
    return images


def _check_labels(labels: Any, num: int, origin: str) -> Any:
    """The labels as one vector of int64."""
    numbers = np.asarray(labels)
    numbers = numbers[:, 0] if numbers.ndim == 2 and numbers.shape[1] == 1 else numbers
    if numbers.shape != (num,) or numbers.dtype.kind not in "iu":
        raise DataError(
            f"{origin} has labels that do not match its images.",
            got=f"{num} images, labels {numbers.dtype} of shape {tuple(numbers.shape)}.",
            hint="one integer per image.",
        )
    return numbers.astype(np.int64)
