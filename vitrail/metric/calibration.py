"""Calibration: is a prediction with 80 % confidence correct 80 % of the time?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.metric.interval import RESAMPLES

NUM_BINS = 15


class Bin(NamedTuple):
    """Predictions of similar confidence: their number, mean confidence and accuracy."""

    n: int
    confidence: float
    accuracy: float


def reliability(confidence: NDArray[np.float64], correct: NDArray[np.bool_]) -> list[Bin]:
    """Group predictions by confidence into bins of equal width; empty bins are left out."""
    indices = np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    counts, confidence_sums, num_correct = (
        np.bincount(indices, weights=values, minlength=NUM_BINS)
        for values in (np.ones(len(confidence)), confidence, correct)
    )
    return [
        Bin(
            int(counts[index]), float(confidence_sums[index] / counts[index]), float(num_correct[index] / counts[index])
        )
        for index in range(NUM_BINS)
        if counts[index]
    ]


def calibration_error(confidence: NDArray[np.float64], correct: NDArray[np.bool_]) -> float:
    """The expected calibration error (ECE): the mean gap between confidence and accuracy, over 15 bins."""
    bins = reliability(confidence, correct)
    return sum(each.n * abs(each.confidence - each.accuracy) for each in bins) / len(confidence)


def calibration_noise(confidence: NDArray[np.float64], *, seed: int = 0) -> float:
    """The calibration error that a perfectly calibrated model with these confidences stays below 95 % of the time.

    It is not zero: of ten images at 85 %, eight or nine are correct, never 8.5. Estimated by simulating outcomes.
    """
    rng = np.random.default_rng(seed)
    errors = [calibration_error(confidence, rng.random(len(confidence)) < confidence) for _ in range(RESAMPLES)]
    return float(np.quantile(errors, 0.95))


def brier_score(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """The mean squared distance of probabilities from the one-hot truth: 0 is perfect, 2 is certain and wrong."""
    of_truth = probabilities[np.arange(len(truth)), truth]
    return float(((probabilities**2).sum(axis=1) - 2 * of_truth + 1).mean())
