"""All that can be said of a classifier from its probabilities and the truth, each number with how sure it is."""

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
    confusion,
    label_scores,
)
from vitrail.metric.ranking import ranked

TOP = 5
WORK = 1e8  # numbers that a bootstrap may look at: some seconds
Odds = Float[NDArray[np.float64], "n K"]
Truth = NDArray[Any]
"""The class number of each picture; or of several labels, a yes or no for each."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How good a classifier is. Of several labels a picture, `top1` asks whether the surest is one of them."""

    n: int
    top1: float
    interval: Interval
    """Of top-1, at 95 %, like all intervals."""
    top5: float
    balanced: float | None
    """The mean of all classes' recall; None of several labels a picture."""
    balanced_interval: Interval | None
    map: float | None
    """Mean average precision of several labels a picture, else None."""
    map_interval: Interval | None
    ece: float
    """How far calibrated confidence and accuracy are apart on average; of several labels, over all of them."""
    ece_noise: float
    """What a perfectly calibrated model of this confidence would stay below on so many pictures."""
    uncalibrated_ece: float
    brier: float
    bins: tuple[Bin, ...]
    uncalibrated_bins: tuple[Bin, ...]
    classes: tuple[ClassScore, ...]
    confused: tuple[tuple[str, str, int], ...]
    """What was taken for what, how often, the most frequent first; of one label a picture."""


def summarise(
    odds: Odds, truth: Truth, labels: Sequence[str], *, uncalibrated: Odds, thresholds: Sequence[float] = ()
) -> Summary:
    """Judge probabilities by the truth: class numbers, or a yes or no for each label of each picture.

    `uncalibrated` are the probabilities before calibration; from `thresholds` on labels are given.
    """
    num, names, multi_label = len(truth), tuple(labels), truth.ndim == 2
    rows = np.arange(num)
    best = _likeliest(odds)
    right = truth[rows[:, None], best] if multi_label else best == truth[:, None]
    sure, hits = questions(odds, truth)
    plain_sure, plain_hits = questions(uncalibrated, truth)
    own = _of_several(odds, truth, names, thresholds) if multi_label else _of_one(odds, truth, best[:, 0], names)
    return Summary(
        n=num,
        top1=float(right[:, 0].mean()),
        interval=wilson_interval(int(right[:, 0].sum()), num),
        top5=float(right.any(axis=1).mean()),
        ece=calibration_error(sure, hits),
        ece_noise=calibration_noise(sure),
        uncalibrated_ece=calibration_error(plain_sure, plain_hits),
        bins=tuple(reliability(sure, hits)),
        uncalibrated_bins=tuple(reliability(plain_sure, plain_hits)),
        **own,
    )


def _likeliest(odds: Odds) -> NDArray[np.int64]:
    """The numbers of the five likeliest classes of each picture, the likeliest first."""
    num = min(TOP, odds.shape[1])
    some = np.sort(np.argpartition(-odds, num - 1, axis=1)[:, :num], axis=1)
    return np.take_along_axis(some, np.argsort(-np.take_along_axis(odds, some, axis=1), axis=1, kind="stable"), axis=1)


def _of_one(odds: Odds, truth: Truth, called: NDArray[np.int64], names: tuple[str, ...]) -> dict[str, Any]:
    """What is told of one label a picture alone."""
    table = confusion(truth, called, len(names))
    balanced, interval = balanced_accuracy(table)
    return {
        "balanced": balanced,
        "balanced_interval": interval,
        "map": None,
        "map_interval": None,
        "brier": brier_score(odds, truth),
        "classes": class_scores(table, names),
        "confused": confused_pairs(table, names),
    }


def _of_several(odds: Odds, truth: Truth, names: tuple[str, ...], thresholds: Sequence[float]) -> dict[str, Any]:
    """What is told of several labels a picture alone."""
    called = odds >= (np.array(thresholds) if len(thresholds) else 0.5)
    mean_precision = ranked(odds, truth)
    resamples = int(np.clip(WORK / odds.size, 50, RESAMPLES))
    return {
        "balanced": None,
        "balanced_interval": None,
        "map": mean_precision(np.ones(len(truth), dtype=np.int64)),
        "map_interval": bootstrap_interval(mean_precision, len(truth), resamples=resamples),
        "brier": float(((odds - truth) ** 2).mean()),
        "classes": label_scores(truth, called, names),
        "confused": (),
    }


def questions(odds: Odds, truth: Truth) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The claims that a confidence was given for, and whether they are right: the likeliest class, or every label."""
    if truth.ndim == 2:
        return odds.ravel(), truth.ravel()
    called = odds.argmax(axis=1)
    return odds[np.arange(len(truth)), called], called == truth
