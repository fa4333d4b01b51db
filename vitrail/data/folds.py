"""Cross-validation folds: each image is evaluated by a model that was trained without it.

Every class is spread evenly, and duplicates and near-duplicates are in the same fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitrail.data.held_out import GroupLabels, count_labels, group_scans
from vitrail.data.rng import make_rng
from vitrail.data.scan import Scan
from vitrail.data.table import SPLITS, Source, Table
from vitrail.errors import DataError

MAX_SHOWN = 5  # classes named in an error


def foldable(source: Source, folds: int) -> Table:
    """The images to divide into folds: all but those of the test split, which is left alone."""
    if folds < 2:
        raise DataError("at least two folds are needed.", got=f"{folds}.", hint="5, or training without folds.")
    if not isinstance(source, Table):
        raise DataError("shards cannot be divided into folds.", got=f"{source.origin}.", hint="a folder, zip or table.")
    table = source.only(np.flatnonzero(source.splits != SPLITS.index("test")))
    counts = np.bincount(table.labels, minlength=len(table.classes))
    _check_counts(table.classes, counts, folds, "images")
    return table


def fold_numbers(table: Table, folds: int, *, seed: int, scans: Sequence[Scan] | None) -> NDArray[np.int64]:
    """The fold of each image; without its `scans`, duplicates are not recognised."""
    groups, readable = group_scans(len(table), scans)
    group_labels = count_labels(table, groups, readable)
    distinct = np.bincount(group_labels.labels, minlength=group_labels.num_labels)[: len(table.classes)]
    _check_counts(table.classes, distinct, folds, "different images")
    return _assign_folds(group_labels, folds, make_rng("split", seed=seed, epoch=1))[groups]


def fold_tables(table: Table, numbers: NDArray[np.int64], folds: int) -> list[Table]:
    """For each fold, a data set in which it is the test split and the others are for training."""
    train, test = SPLITS.index("train"), SPLITS.index("test")
    return [replace(table, splits=np.where(numbers == number, test, train).astype(np.int8)) for number in range(folds)]


def _assign_folds(group_labels: GroupLabels, folds: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The fold of each group: rare labels and large groups first, each to the fold with the fewest of its labels."""
    sizes = group_labels.sizes()
    filled = np.zeros((folds, group_labels.num_labels))
    num_groups = len(group_labels.starts) - 1
    cells = [group_labels.of(group) for group in range(num_groups)]
    rarest = [min((int(sizes[label]) for label, _ in each), default=0) for each in cells]
    largest = [-sum(count for _, count in each) for each in cells]
    assigned = np.zeros(num_groups, dtype=np.int64)
    for group in np.lexsort(np.array([rng.permutation(num_groups), largest, rarest])).tolist():
        labels = [label for label, _ in cells[group]]
        load = (filled[:, labels] / sizes[labels]).sum(axis=1) if labels else filled.sum(axis=1)
        fold = int(np.lexsort((filled.sum(axis=1), load.round(9)))[0])
        assigned[group] = fold
        for label, count in cells[group]:
            filled[fold, label] += count
    return assigned


def _check_counts(classes: Sequence[str], counts: NDArray[np.int64], folds: int, what: str) -> None:
    few = [f"{name!r} ({count})" for name, count in zip(classes, counts.tolist(), strict=True) if count < folds]
    if few:
        raise DataError(
            f"each class needs at least as many {what} as there are folds.",
            got=f"{folds} folds, and "
            + ", ".join(few[:MAX_SHOWN])
            + (f" and {len(few) - MAX_SHOWN} more." if len(few) > MAX_SHOWN else "."),
            hint=f"--folds {max(2, int(counts.min()))}." if counts.min() >= 2 else "more images of these classes.",
        )
