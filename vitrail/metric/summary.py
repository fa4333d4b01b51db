"""Every score of a classifier, from its probabilities and the true labels, with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from vitrail.metric.calibration import Bin, brier_score, calibration_error, calibration_noise, reliability
from vitrail.metric.interval import RESAMPLES, Interval, bootstrap_interval, wilson_interval
from vitrail.metric.per_class import (
    ClassScore,
    balanced_accuracy,
    class_scores,
    confused_pairs,
    confusion_matrix,
    label_scores,
)
from vitrail.metric.ranking import weighted_map

TOP = 5
MAX_BOOTSTRAP_WORK = 1e8  # probabilities that a bootstrap may process: a few seconds
Probabilities = Float[NDArray[np.float64], "n K"]
Truth = NDArray[Any]
"""The class index of each image or, for multi-label data, a boolean for each image and label."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How good a classifier is. For multi-label data, `top1` asks whether the most likely label is a true one."""

    n: int
    top1: float
    interval: Interval
    """Of top-1, at 95 %, like all intervals."""
    top5: float
    balanced: float | None
    """The mean recall over classes; None for multi-label data."""
    balanced_interval: Interval | None
    map: float | None
    """Mean average precision of multi-label data, else None."""
    map_interval: Interval | None
    ece: float
    """The mean gap between calibrated confidence and accuracy; for multi-label data, over all labels."""
    ece_noise: float
    """What a perfectly calibrated model with these confidences stays below 95 % of the time."""
    uncalibrated_ece: float
    brier: float
    bins: tuple[Bin, ...]
    uncalibrated_bins: tuple[Bin, ...]
    classes: tuple[ClassScore, ...]
    confused: tuple[tuple[str, str, int], ...]
    """Confusions (true label, predicted label, count), most frequent first; empty for multi-label data."""


def summarise(
    probabilities: Probabilities,
    truth: Truth,
    labels: Sequence[str],
    *,
    uncalibrated: Probabilities,
    thresholds: Sequence[float] = (),
) -> Summary:
    """Score probabilities against the truth.

    `uncalibrated` are the probabilities before calibration; labels of multi-label data are assigned from `thresholds`
    on.
    """
    num, names, multi_label = len(truth), tuple(labels), truth.ndim == 2
    rows = np.arange(num)
    top = _top_classes(probabilities)
    correct = truth[rows[:, None], top] if multi_label else top == truth[:, None]
    confidence, hits = _confidence_and_hits(probabilities, truth)
    uncalibrated_confidence, uncalibrated_hits = _confidence_and_hits(uncalibrated, truth)
    specific = (
        _multi_label_scores(probabilities, truth, names, thresholds)
        if multi_label
        else _single_label_scores(probabilities, truth, top[:, 0], names)
    )
    return Summary(
        n=num,
        top1=float(correct[:, 0].mean()),
        interval=wilson_interval(int(correct[:, 0].sum()), num),
        top5=float(correct.any(axis=1).mean()),
        ece=calibration_error(confidence, hits),
        ece_noise=calibration_noise(confidence),
        uncalibrated_ece=calibration_error(uncalibrated_confidence, uncalibrated_hits),
        bins=tuple(reliability(confidence, hits)),
        uncalibrated_bins=tuple(reliability(uncalibrated_confidence, uncalibrated_hits)),
        **specific,
    )


def _top_classes(probabilities: Probabilities) -> NDArray[np.int64]:
    """The indices of the five most likely classes of each image, in descending order."""
    num = min(TOP, probabilities.shape[1])
    some = np.sort(np.argpartition(-probabilities, num - 1, axis=1)[:, :num], axis=1)
    order = np.argsort(-np.take_along_axis(probabilities, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def _single_label_scores(
    probabilities: Probabilities, truth: Truth, predicted: NDArray[np.int64], names: tuple[str, ...]
) -> dict[str, Any]:
    matrix = confusion_matrix(truth, predicted, len(names))
    balanced, interval = balanced_accuracy(matrix)
    return {
        "balanced": balanced,
        "balanced_interval": interval,
        "map": None,
        "map_interval": None,
        "brier": brier_score(probabilities, truth),
        "classes": class_scores(matrix, names),
        "confused": confused_pairs(matrix, names),
    }


def _multi_label_scores(
    probabilities: Probabilities, truth: Truth, names: tuple[str, ...], thresholds: Sequence[float]
) -> dict[str, Any]:
    assigned = probabilities >= (np.array(thresholds) if len(thresholds) else 0.5)
    statistic = weighted_map(probabilities, truth)
    resamples = int(np.clip(MAX_BOOTSTRAP_WORK / probabilities.size, 50, RESAMPLES))
    return {
        "balanced": None,
        "balanced_interval": None,
        "map": statistic(np.ones(len(truth), dtype=np.int64)),
        "map_interval": bootstrap_interval(statistic, len(truth), resamples=resamples),
        "brier": float(((probabilities - truth) ** 2).mean()),
        "classes": label_scores(truth, assigned, names),
        "confused": (),
    }


def _confidence_and_hits(probabilities: Probabilities, truth: Truth) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The confidence of each claim and whether it is correct: the top class, or every label of multi-label data."""
    if truth.ndim == 2:
        return probabilities.ravel(), truth.ravel()
    predicted = probabilities.argmax(axis=1)
    return probabilities[np.arange(len(truth)), predicted], predicted == truth
