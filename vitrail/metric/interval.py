"""Confidence intervals for scores measured on a limited number of images."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Z_TWO_SIDED_95 = 1.959963984540054  # normal quantile of a two-sided 95 % interval
Interval = tuple[float, float]
Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]
RESAMPLES = 500
MIN_EXPECTED = 5  # hits or misses; with fewer, the bootstrap interval alone is too narrow


def wilson_interval(hits: float, num: float) -> Interval:
    """The 95 % score interval of a proportion (Wilson 1927), valid for small samples too."""
    proportion = hits / num
    centre = proportion + Z_TWO_SIDED_95**2 / (2 * num)
    spread = Z_TWO_SIDED_95 * math.sqrt(proportion * (1 - proportion) / num + Z_TWO_SIDED_95**2 / (4 * num**2))
    scale = 1 + Z_TWO_SIDED_95**2 / num
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def mean_proportion_interval(hits: Counts | Numbers, nums: Counts | Numbers) -> Interval:
    """The 95 % interval of the mean of several groups' proportions: Wilson's, with an effective sample size.

    For the variance, four pseudo-images shrink each proportion towards the mean, and two pseudo-groups shrink the mean
    towards one half: a small group may score 0 or 1 by chance, and a large group says little about a small one.
    """
    proportions = hits / nums
    prior = (proportions.sum() + 2 * 0.5) / (len(nums) + 2)
    shrunk = (hits + 4 * prior) / (nums + 4)
    centre, variance = float(shrunk.mean()), float((shrunk * (1 - shrunk) / nums).sum()) / len(nums) ** 2
    effective_num = centre * (1 - centre) / variance
    return wilson_interval(float(proportions.mean()) * effective_num, effective_num)


def bootstrap_interval(
    statistic: Callable[[Counts], float], num: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The 95 % interval of a statistic between 0 and 1, by resampling `num` images with replacement.

    `statistic` takes how often each image counts. The interval is computed on the log-odds scale, where the spread is
    even near 0 and 1. For a statistic close to 0 or 1 all resamples may agree, so there the interval is at least as
    wide as that of a proportion.
    """
    rng = np.random.default_rng(seed)
    estimate = statistic(np.ones(num, dtype=np.int64))
    resampled = [statistic(np.bincount(rng.integers(0, num, num), minlength=num)) for _ in range(resamples)]
    margin = 0.25 / num  # `num` images cannot distinguish smaller values from 0, or larger ones from 1
    centre, *log_odds = (math.log(value / (1 - value)) for value in np.clip([estimate, *resampled], margin, 1 - margin))
    spread = Z_TWO_SIDED_95 * float(np.std(log_odds))
    low, high = 1 / (1 + math.exp(spread - centre)), 1 / (1 + math.exp(-spread - centre))
    if min(estimate, 1 - estimate) * num < MIN_EXPECTED:
        wilson = wilson_interval(estimate * num, num)
        low, high = min(low, wilson[0], estimate), max(high, wilson[1], estimate)
    return low, high
