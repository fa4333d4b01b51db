"""A data set in parts, so that each picture can be judged by a model that was trained without it.

Every class is spread evenly, and pictures that are the same, or nearly, lie in the same part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitrail.data.held_out import Members, groups_of, members_of
from vitrail.data.rng import make_rng
from vitrail.data.scan import Scan
from vitrail.data.table import SPLITS, Source, Table
from vitrail.errors import DataError

SHOWN = 5  # classes that are named


def foldable(source: Source, folds: int) -> Table:
    """The pictures that are divided: all but those of the test split, which stay as they are."""
    if folds < 2:
        raise DataError("folds are two at least.", got=f"{folds}.", hint="5, or no folds at all.")
    if not isinstance(source, Table):
        raise DataError("shards cannot be divided into folds.", got=source.origin, hint="a folder, a zip or a table.")
    table = source.only(np.flatnonzero(source.splits != SPLITS.index("test")))
    counts = np.bincount(table.labels, minlength=len(table.classes))
    _check(table.classes, counts, folds, "pictures")
    return table


def fold_numbers(table: Table, folds: int, *, seed: int, seen: Sequence[Scan] | None) -> NDArray[np.int64]:
    """The fold of each picture; `seen` is a look at each, without which none is taken for a duplicate."""
    groups, readable = groups_of(len(table), seen)
    members = members_of(table, groups, readable)
    distinct = np.bincount(members.labels, minlength=members.num_labels)[: len(table.classes)]
    _check(table.classes, distinct, folds, "different pictures")
    return _dealt(members, folds, make_rng("split", seed=seed, epoch=1))[groups]


def fold_tables(table: Table, numbers: NDArray[np.int64], folds: int) -> list[Table]:
    """For each fold a data set in which it is the test split, and all others are for training."""
    train, test = SPLITS.index("train"), SPLITS.index("test")
    return [replace(table, splits=np.where(numbers == number, test, train).astype(np.int8)) for number in range(folds)]


def _dealt(members: Members, folds: int, random: np.random.Generator) -> NDArray[np.int64]:
    """The fold of each group: rare labels first, large groups first, each to the fold that has least of its labels."""
    sizes = members.sizes()
    held = np.zeros((folds, members.num_labels))
    num_groups = len(members.starts) - 1
    cells = [members.of(group) for group in range(num_groups)]
    rarest = [min((int(sizes[label]) for label, _ in each), default=0) for each in cells]
    largest = [-sum(count for _, count in each) for each in cells]
    chosen = np.zeros(num_groups, dtype=np.int64)
    for group in np.lexsort(np.array([random.permutation(num_groups), largest, rarest])).tolist():
        labels = [label for label, _ in cells[group]]
        load = (held[:, labels] / sizes[labels]).sum(axis=1) if labels else held.sum(axis=1)
        fold = int(np.lexsort((held.sum(axis=1), load.round(9)))[0])
        chosen[group] = fold
        for label, count in cells[group]:
            held[fold, label] += count
    return chosen


def _check(classes: Sequence[str], counts: NDArray[np.int64], folds: int, what: str) -> None:
    few = [f"{name!r} ({count})" for name, count in zip(classes, counts.tolist(), strict=True) if count < folds]
    if few:
        raise DataError(
            f"each class needs as many {what} as there are folds.",
            got=f"{folds} folds, and "
            + ", ".join(few[:SHOWN])
            + (f" and {len(few) - SHOWN} more." if len(few) > SHOWN else "."),
            hint=f"--folds {max(2, int(counts.min()))}." if counts.min() >= 2 else "more pictures of it.",
        )
