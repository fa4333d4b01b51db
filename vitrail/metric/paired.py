"""Is one model better than another, or was it chance? A paired test on the same images has far more power."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from vitrail.metric.interval import Z_TWO_SIDED_95, Interval


class Paired(NamedTuple):
    """The accuracy of the second model minus that of the first, and how likely chance alone explains it."""

    difference: float
    interval: Interval
    p_value: float
    n: int
    """Images that both models were evaluated on."""
    only_first: int
    """Images that only the first model classifies correctly."""
    only_second: int

    @property
    def significant(self) -> bool:
        """Whether p < 0.05."""
        return self.p_value < 0.05


def compare_hits(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Paired:
    """McNemar's test with the mid-p correction, and the interval of Agresti and Min (2005), for paired proportions."""
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    num = len(first)
    more, less = (only_second + 0.5, only_first + 0.5)
    centre = (more - less) / (num + 2)
    spread = Z_TWO_SIDED_95 * math.sqrt((more + less) - (more - less) ** 2 / (num + 2)) / (num + 2)
    return Paired(
        (only_second - only_first) / num,
        (centre - spread, centre + spread),
        _mid_p(only_first, only_second),
        num,
        only_first,
        only_second,
    )


def _mid_p(one: int, other: int) -> float:
    """The probability that a fair coin splits the differences at least as unevenly, ties counted half."""
    num, fewer = one + other, min(one, other)
    if not num:
        return 1.0
    tail = float(binom.cdf(fewer, num, 0.5) - 0.5 * binom.pmf(fewer, num, 0.5))
    return min(1.0, 2 * tail)
