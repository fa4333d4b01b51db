"""Which classes are known well, and which are taken for which?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.metric.interval import Interval, mean_share_interval

Table = NDArray[np.int64]


class ClassScore(NamedTuple):
    """How a class fares; None where nothing was there to be judged."""

    label: str
    n: int
    """Pictures of this class."""
    precision: float | None
    """Of the pictures that were called so, how many are?"""
    recall: float | None
    """Of its pictures, how many were called so?"""
    f1: float | None


def confusion(truth: NDArray[np.int64], called: NDArray[np.int64], num: int) -> Table:
    """How often the class of the row was called that of the column."""
    return np.bincount(truth * num + called, minlength=num * num).reshape(num, num)


def class_scores(table: Table, labels: tuple[str, ...]) -> tuple[ClassScore, ...]:
    """Precision, recall and F1 of each class."""
    return _scores(np.diag(table), table.sum(axis=1), table.sum(axis=0), labels)


def label_scores(
    truth: NDArray[np.bool_], called: NDArray[np.bool_], labels: tuple[str, ...]
) -> tuple[ClassScore, ...]:
    """Precision, recall and F1 of each label, of which a picture may have several."""
    return _scores((truth & called).sum(axis=0), truth.sum(axis=0), called.sum(axis=0), labels)


def _scores(
    right: NDArray[np.int64], of_class: NDArray[np.int64], called: NDArray[np.int64], labels: tuple[str, ...]
) -> tuple[ClassScore, ...]:
    return tuple(
        ClassScore(
            label,
            int(of_class[number]),
            _share(right[number], called[number]),
            _share(right[number], of_class[number]),
            _share(2 * right[number], of_class[number] + called[number]),
        )
        for number, label in enumerate(labels)
    )


def balanced_accuracy(table: Table) -> tuple[float, Interval]:
    """The mean of recall over the classes that there are, and its interval: every class counts the same."""
    of_class = table.sum(axis=1)
    there = of_class > 0
    right, nums = np.diag(table)[there], of_class[there]
    return float((right / nums).mean()), mean_share_interval(right, nums)


def confused_pairs(table: Table, labels: tuple[str, ...]) -> tuple[tuple[str, str, int], ...]:
    """What was taken for what, the most frequent first."""
    wrong = table - np.diag(np.diag(table))
    rows, columns = np.nonzero(wrong)
    order = np.argsort(-wrong[rows, columns], kind="stable")
    return tuple((labels[rows[each]], labels[columns[each]], int(wrong[rows[each], columns[each]])) for each in order)


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
