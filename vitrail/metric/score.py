"""A score that knows its metric and its own noise."""

from __future__ import annotations

import math
from typing import NamedTuple

from vitrail.percent import percent


class Metric(NamedTuple):
    """What a score measures: its name in JSON and metrics.jsonl, its title for people, and which way is better."""

    name: str
    title: str
    higher: bool = True
    is_fraction: bool = False
    """Whether it is a fraction of 1, shown in per cent."""

    def format(self, value: float) -> str:
        """Format a value for people."""
        return percent(value, 2) if self.is_fraction else f"{value:.4g}"


class Score(NamedTuple):
    """A score on validation data with its standard error, the mean loss, and the number of samples."""

    metric: Metric
    value: float
    error: float
    """The standard error of `value`."""
    loss: float
    n: int

    @property
    def text(self) -> str:
        """The value for people."""
        return self.metric.format(self.value)

    def worse_than(self, other: Score) -> bool:
        """Whether the value is worse, by however little."""
        return self.value < other.value if self.metric.higher else self.value > other.value

    def better_than(self, other: Score | None) -> bool:
        """Whether this score is better beyond the other's standard error, or within it and its loss is lower.

        The loss is less noisy on few samples. A score whose loss is not finite is never better.
        """
        if not math.isfinite(self.loss):
            return False
        if other is None:
            return True
        if abs(self.value - other.value) > other.error:
            return (self.value > other.value) == self.metric.higher
        return self.loss < other.loss


def fraction_error(value: float, n: int) -> float:
    """The standard error of a fraction of `n` samples."""
    return (value * (1 - value) / max(1, n)) ** 0.5
