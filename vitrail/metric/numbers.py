"""Scores of predicted numbers: absolute errors, explained variance, and ranges that hold the true number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.metric.interval import RESAMPLES, Interval, wilson_interval

MIN_PERCENT, MAX_PERCENT = 2.5, 97.5


@dataclass(frozen=True, kw_only=True)
class NumberSummary:
    """How far predicted numbers are from the true ones."""

    n: int
    mae: float
    """The mean absolute error."""
    interval: Interval
    """Its 95 % interval."""
    median_error: float
    rmse: float
    r2: float | None
    """The fraction of the variance that is explained; None if all true numbers are the same."""
    baseline_mae: float
    """The mean absolute error of always predicting the mean of these true numbers."""
    coverage: float | None
    """The fraction of true numbers inside their predicted range; None without ranges."""
    coverage_interval: Interval | None


def summarise_numbers(
    predicted: NDArray[np.float64], true: NDArray[np.float64], *, half_width: float | None, seed: int = 0
) -> NumberSummary:
    """Score predictions; the interval of the mean absolute error is a bootstrap over images."""
    errors = np.abs(predicted - true)
    num = len(errors)
    rng = np.random.default_rng(seed)
    means = [float(errors[rng.integers(0, num, num)].mean()) for _ in range(RESAMPLES)]
    variance = float(((true - true.mean()) ** 2).sum())
    inside = None if half_width is None else int((errors <= half_width).sum())
    return NumberSummary(
        n=num,
        mae=float(errors.mean()),
        interval=(float(np.percentile(means, MIN_PERCENT)), float(np.percentile(means, MAX_PERCENT))),
        median_error=float(np.median(errors)),
        rmse=float(np.sqrt((errors**2).mean())),
        r2=1.0 - float((errors**2).sum()) / variance if variance > 0 else None,
        baseline_mae=float(np.abs(true - true.mean()).mean()),
        coverage=None if inside is None else inside / num,
        coverage_interval=None if inside is None else wilson_interval(inside, num),
    )


def conformal_half_width(errors: NDArray[np.float64], coverage: float) -> float | None:
    """The distance that holds a new true number with this probability (split conformal prediction, arXiv 2107.07511).

    It is the k-th smallest absolute error of held-out images, k = ceil((n + 1) coverage); None with too few of them.
    """
    rank = math.ceil((len(errors) + 1) * coverage)
    return float(np.sort(errors)[rank - 1]) if 0 < rank <= len(errors) else None
