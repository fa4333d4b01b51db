"""How sure is a number that was measured on few pictures?"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054  # the normal quantile of a 95 % interval
Interval = tuple[float, float]
Counts = NDArray[np.int64]
RESAMPLES = 500
NEAR = 5  # pictures from 0 or 1


def wilson_interval(hits: float, num: float) -> Interval:
    """The 95 % score interval of a proportion (Wilson 1927), honest for small numbers too."""
    share = hits / num
    centre = share + Z95**2 / (2 * num)
    spread = Z95 * math.sqrt(share * (1 - share) / num + Z95**2 / (4 * num**2))
    scale = 1 + Z95**2 / num
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def mean_share_interval(hits: Counts, nums: Counts) -> Interval:
    """The 95 % interval of the mean of several groups' shares: Wilson's, for as many pictures as tell as much.

    For the spread each share is drawn by four pictures towards the mean, and that by two groups towards one half: the
    share of a small group may be 0 or 1 by luck, and a large group tells little of a small one.
    """
    shares = hits / nums
    towards = (shares.sum() + 2 * 0.5) / (len(nums) + 2)
    drawn = (hits + 4 * towards) / (nums + 4)
    centre, variance = float(drawn.mean()), float((drawn * (1 - drawn) / nums).sum()) / len(nums) ** 2
    worth = centre * (1 - centre) / variance
    return wilson_interval(float(shares.mean()) * worth, worth)


def bootstrap_interval(
    statistic: Callable[[Counts], float], num: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The 95 % interval of a share that is no plain proportion, by pictures drawn anew with replacement.

    `statistic` is told how often each of `num` pictures counts. The interval is laid on the scale of log-odds, on
    which the spread near 0 and 1 is even. Of a share that is nearly 0 or 1 all draws may be alike; there the interval
    is at least that of a plain proportion of so many pictures.
    """
    random = np.random.default_rng(seed)
    once = statistic(np.ones(num, dtype=np.int64))
    drawn = [statistic(np.bincount(random.integers(0, num, num), minlength=num)) for _ in range(resamples)]
    half = 0.25 / num  # what cannot be told from 0 and 1
    centre, *odds = (math.log(value / (1 - value)) for value in np.clip([once, *drawn], half, 1 - half))
    spread = Z95 * float(np.std(odds))
    low, high = 1 / (1 + math.exp(spread - centre)), 1 / (1 + math.exp(-spread - centre))
    if min(once, 1 - once) * num < NEAR:
        plain = wilson_interval(once * num, num)
        low, high = min(low, plain[0], once), max(high, plain[1], once)
    return low, high
