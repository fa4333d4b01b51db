"""Is one model better than another, or was it luck? Both are judged on the same pictures, which tells much more."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from vitrail.metric.interval import Z95, Interval


class Paired(NamedTuple):
    """How much more often the second model is right, and how likely luck alone gives as much."""

    difference: float
    interval: Interval
    p_value: float
    n: int
    """Pictures that both were judged on."""
    only_first: int
    """Pictures that only the first model gets right."""
    only_second: int

    @property
    def real(self) -> bool:
        """Whether the difference is more than luck would give in 19 cases of 20."""
        return self.p_value < 0.05


def compare_hits(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Paired:
    """McNemar's test with the mid-p correction, and the interval of Agresti and Min (2005), for paired proportions."""
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    num = len(first)
    more, less = (only_second + 0.5, only_first + 0.5)
    centre = (more - less) / (num + 2)
    spread = Z95 * math.sqrt((more + less) - (more - less) ** 2 / (num + 2)) / (num + 2)
    return Paired(
        (only_second - only_first) / num,
        (centre - spread, centre + spread),
        _mid_p(only_first, only_second),
        num,
        only_first,
        only_second,
    )


def _mid_p(one: int, other: int) -> float:
    """The chance that a fair coin splits so many differences at least as unevenly, half of ties counted."""
    num, fewer = one + other, min(one, other)
    if not num:
        return 1.0
    tail = float(binom.cdf(fewer, num, 0.5) - 0.5 * binom.pmf(fewer, num, 0.5))
    return min(1.0, 2 * tail)
