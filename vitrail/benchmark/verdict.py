"""Does a claim hold? Contrasts measured with several seeds, their intervals, and the verdict that follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

Verdict = Literal["holds", "does not hold", "cannot tell at this scale", "not run yet"]
Row = dict[str, Any]
"""What one measurement found, as in JSON."""
Measured = Sequence[Mapping[str, Row]]
"""For each seed, the rows by the names that the claim gives its measurements."""
MIN_SEEDS = 2


class Contrast(NamedTuple):
    """A number that is above zero if this part of the claim is true, measured once per seed."""

    statement: str
    values: tuple[float, ...]
    unit: str = "points"
    """`points` are percentage points: values of 0.01 each."""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean over seeds, by Student's t."""
        from scipy.stats import t

        num = len(self.values)
        if num < MIN_SEEDS:
            return (-math.inf, math.inf)
        half = float(t.ppf(0.975, num - 1)) * stdev(self.values) / math.sqrt(num)
        return (self.mean - half, self.mean + half)

    @property
    def verdict(self) -> Verdict:
        """Whether the interval is above zero, below it, or around it."""
        low, high = self.interval
        if low > 0:
            return "holds"
        return "does not hold" if high < 0 else "cannot tell at this scale"


def conclude(contrasts: Sequence[Contrast]) -> Verdict:
    """A claim holds if all its parts do; it does not hold if one of them does not."""
    verdicts = [contrast.verdict for contrast in contrasts]
    if not verdicts:
        return "not run yet"
    for verdict in ("does not hold", "cannot tell at this scale"):
        if verdict in verdicts:
            return verdict
    return "holds"


def deciding(contrasts: Sequence[Contrast]) -> Contrast:
    """The part that the verdict rests on: the first one with that verdict."""
    verdict = conclude(contrasts)
    return next(contrast for contrast in contrasts if contrast.verdict == verdict)


class Curve(NamedTuple):
    """A line of a claim's figure: for each x, the values of all seeds."""

    name: str
    points: tuple[tuple[float, tuple[float, ...]], ...]


class Chart(NamedTuple):
    """A claim's figure."""

    curves: tuple[Curve, ...]
    x_label: str
    y_label: str = "test accuracy (%)"
    log_x: bool = False
    x_names: tuple[str, ...] = ()
    """Names in place of the numbers 0, 1, 2, ... on the x axis."""


def percent_curve(name: str, measured: Measured, points: Sequence[tuple[float, str]]) -> Curve:
    """A line of accuracies in per cent: for each x, the name of its measurement."""
    return Curve(name, tuple((x, tuple(100 * seed[key]["accuracy"] for seed in measured)) for x, key in points))


def contrast(statement: str, measured: Measured, better: str, worse: str) -> Contrast:
    """How much more accurate one measurement is than another."""
    return Contrast(statement, tuple(seed[better]["accuracy"] - seed[worse]["accuracy"] for seed in measured))
