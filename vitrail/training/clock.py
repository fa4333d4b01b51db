"""How much of a run is done: by steps, or by the time that the user has.

A run of minutes is measured by its own clock, which goes on across interruptions: a checkpoint knows how many seconds
were spent. So the schedule reaches zero when the time is over, however busy the machine was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


class Clock:
    """Tells the share of the run that is done, by steps if they are told, else by seconds."""

    def __init__(self, *, steps: int | None, seconds: float | None, spent: float = 0.0) -> None:
        assert (steps is None) != (seconds is None)
        self.steps, self.seconds = steps, seconds
        self.spent, self.started = spent, time.monotonic()

    @property
    def elapsed(self) -> float:
        """The seconds that the run has taken, those before an interruption included."""
        return self.spent + time.monotonic() - self.started

    def done(self, step: int) -> float:
        """The share of the run that is over before this step, 0 to 1."""
        if self.steps is not None:
            return min(1.0, step / self.steps)
        assert self.seconds is not None
        return min(1.0, self.elapsed / self.seconds)

    def go_back(self, spent: float) -> None:
        """After an interruption: so many seconds were spent before."""
        self.spent, self.started = spent, time.monotonic()


@dataclass
class Timing:
    """Where the time of a run goes, and how its speed compares with the forecast; shared by all stages of a recipe."""

    started: float = field(default_factory=time.monotonic)
    data_ready: float = field(default_factory=time.monotonic)
    """When the data had been opened, scanned and split."""
    before: float = 0.0
    """Seconds before an interruption."""
    planning: float = 0.0
    training: float = 0.0
    evaluation: float = 0.0
    speed: dict[str, float] = field(default_factory=dict)
    """Images per second: the `forecast`, and what was `measured`."""

    @property
    def total(self) -> float:
        """Seconds so far, those before an interruption included."""
        return self.before + time.monotonic() - self.started

    def phases(self) -> dict[str, float]:
        """Opening and splitting the data; planning, with a probe or baseline; training; evaluation within it; all."""
        phases = {
            "data": self.data_ready - self.started,
            "planning": self.planning,
            "training": self.training,
            "evaluation": self.evaluation,
            "total": self.total,
        }
        return {phase: round(seconds, 2) for phase, seconds in phases.items()}
