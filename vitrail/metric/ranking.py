"""Average precision: how well does each label's score rank images with the label above those without?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def mean_average_precision(scores: NDArray[np.floating], truth: NDArray[np.bool_]) -> float:
    """The mean over labels of the area under the precision-recall curve; labels that never occur are left out."""
    return weighted_map(scores, truth)(np.ones(len(scores), dtype=np.int64))


def weighted_map(scores: NDArray[np.floating], truth: NDArray[np.bool_]) -> Callable[[NDArray[np.int64]], float]:
    """Mean average precision as a function of how often each image counts; the scores are sorted only once."""
    num = len(scores)
    order = np.argsort(-scores, axis=0, kind="stable")
    sorted_truth = np.take_along_axis(truth, order, axis=0)
    sorted_scores = np.take_along_axis(scores, order, axis=0)
    # Tied images share a threshold: their precision is that after the last of them.
    last = np.concatenate([sorted_scores[1:] != sorted_scores[:-1], np.ones_like(sorted_truth[:1])])
    positions = np.where(last, np.arange(num)[:, None], num)
    ends = np.minimum.accumulate(positions[::-1], axis=0)[::-1]

    def evaluate(counts: NDArray[np.int64]) -> float:
        weights = counts[order]
        found = np.cumsum(weights * sorted_truth, axis=0)
        precision = np.take_along_axis(found / np.maximum(np.cumsum(weights, axis=0), 1), ends, axis=0)
        occurs = found[-1] > 0
        averages = (weights * sorted_truth * precision).sum(axis=0)[occurs] / found[-1][occurs]
        return float(averages.mean()) if occurs.any() else 0.0

    return evaluate
