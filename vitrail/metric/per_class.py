"""Scores per class, and which classes are confused."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.metric.interval import Interval, mean_proportion_interval

Matrix = NDArray[np.int64]


class ClassScore(NamedTuple):
    """The scores of one class; None where there was nothing to score."""

    label: str
    n: int
    """Images of this class."""
    precision: float | None
    """The fraction of the images predicted as this class that belong to it."""
    recall: float | None
    """The fraction of the images of this class that were predicted as it."""
    f1: float | None


def confusion_matrix(truth: NDArray[np.int64], predicted: NDArray[np.int64], num_classes: int) -> Matrix:
    """How often the class of the row was predicted as the class of the column."""
    return np.bincount(truth * num_classes + predicted, minlength=num_classes * num_classes).reshape(
        num_classes, num_classes
    )


def class_scores(matrix: Matrix, labels: tuple[str, ...]) -> tuple[ClassScore, ...]:
    """Precision, recall and F1 of each class."""
    return _scores(np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0), labels)


def label_scores(
    truth: NDArray[np.bool_], assigned: NDArray[np.bool_], labels: tuple[str, ...]
) -> tuple[ClassScore, ...]:
    """Precision, recall and F1 of each label of multi-label data."""
    return _scores((truth & assigned).sum(axis=0), truth.sum(axis=0), assigned.sum(axis=0), labels)


def _scores(
    num_correct: NDArray[np.int64],
    num_true: NDArray[np.int64],
    num_predicted: NDArray[np.int64],
    labels: tuple[str, ...],
) -> tuple[ClassScore, ...]:
    return tuple(
        ClassScore(
            label,
            int(num_true[index]),
            _ratio(num_correct[index], num_predicted[index]),
            _ratio(num_correct[index], num_true[index]),
            _ratio(2 * num_correct[index], num_true[index] + num_predicted[index]),
        )
        for index, label in enumerate(labels)
    )


def balanced_accuracy(matrix: Matrix) -> tuple[float, Interval]:
    """The mean recall of the classes that occur, and its interval: every class counts the same."""
    num_true = matrix.sum(axis=1)
    occurs = num_true > 0
    num_correct, nums = np.diag(matrix)[occurs], num_true[occurs]
    return float((num_correct / nums).mean()), mean_proportion_interval(num_correct, nums)


def confused_pairs(matrix: Matrix, labels: tuple[str, ...]) -> tuple[tuple[str, str, int], ...]:
    """The confusions (true label, predicted label, count), most frequent first."""
    errors = matrix - np.diag(np.diag(matrix))
    rows, columns = np.nonzero(errors)
    order = np.argsort(-errors[rows, columns], kind="stable")
    return tuple((labels[rows[each]], labels[columns[each]], int(errors[rows[each], columns[each]])) for each in order)


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
