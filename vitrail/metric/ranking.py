"""How well are pictures with a label told from those without?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def mean_average_precision(odds: NDArray[np.floating], truth: NDArray[np.bool_]) -> float:
    """The mean over labels of the area under precision and recall; one that never occurs is left out."""
    return ranked(odds, truth)(np.ones(len(odds), dtype=np.int64))


def ranked(odds: NDArray[np.floating], truth: NDArray[np.bool_]) -> Callable[[NDArray[np.int64]], float]:
    """The mean average precision as a function of how often each picture counts; sorted once for all of them."""
    num = len(odds)
    order = np.argsort(-odds, axis=0, kind="stable")
    own = np.take_along_axis(truth, order, axis=0)
    sorted_odds = np.take_along_axis(odds, order, axis=0)
    # Pictures of the same odds are found together: precision is that after the last of them.
    last = np.concatenate([sorted_odds[1:] != sorted_odds[:-1], np.ones_like(own[:1])])
    places = np.where(last, np.arange(num)[:, None], num)
    ends = np.minimum.accumulate(places[::-1], axis=0)[::-1]

    def value(counts: NDArray[np.int64]) -> float:
        times = counts[order]
        found = np.cumsum(times * own, axis=0)
        precision = np.take_along_axis(found / np.maximum(np.cumsum(times, axis=0), 1), ends, axis=0)
        there = found[-1] > 0
        gains = (times * own * precision).sum(axis=0)[there] / found[-1][there]
        return float(gains.mean()) if there.any() else 0.0

    return value
