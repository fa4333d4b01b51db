"""How much of a run is done, in steps or in seconds.

A run of minutes has a clock that continues across interruptions: checkpoints store the seconds spent. So the schedule
reaches zero when the time is over, however busy the machine is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import psutil

from vitrail.training.run_progress import RunProgress


class Clock:
    """Measures the fraction of a run that is done: by steps, or by seconds."""

    def __init__(self, *, steps: int | None, seconds: float | None, spent: float = 0.0) -> None:
        assert (steps is None) != (seconds is None)
        self.steps, self.seconds = steps, seconds
        self.spent, self.started = spent, time.monotonic()

    @property
    def elapsed(self) -> float:
        """The seconds that the run has taken, including those before an interruption."""
        return self.spent + time.monotonic() - self.started

    def fraction_done(self, step: int) -> float:
        """The fraction of the run that is over before this step, 0 to 1."""
        if self.steps is not None:
            return min(1.0, step / self.steps)
        assert self.seconds is not None
        return min(1.0, self.elapsed / self.seconds)

    def resume(self, spent: float) -> None:
        """Continue after an interruption, before which `spent` seconds had passed."""
        self.spent, self.started = spent, time.monotonic()


def process_start() -> float:
    """When this process was started, on the scale of time.monotonic()."""
    return time.monotonic() - (time.time() - psutil.Process().create_time())


@dataclass
class Timing:
    """Where the time of a run goes, and its speed beside the forecast; shared by all stages of a recipe."""

    started: float = field(default_factory=time.monotonic)
    data_ready: float = field(default_factory=time.monotonic)
    """When the data had been opened, scanned and split."""
    seconds_before: float = 0.0
    """Seconds spent before an interruption."""
    planning: float = 0.0
    training: float = 0.0
    evaluation: float = 0.0
    speed: dict[str, float] = field(default_factory=dict)
    """Samples per second: `forecast` and `measured`."""

    @property
    def total(self) -> float:
        """Seconds so far, including those before an interruption."""
        return self.seconds_before + time.monotonic() - self.started

    def add_stage(self, clock: Clock, progress: RunProgress, batch_size: int, forecast: float) -> None:
        """Count a stage of training that has ended."""
        self.seconds_before += clock.spent
        self.training += progress.training_seconds
        self.evaluation += progress.evaluation_seconds
        if progress.training_seconds:
            measured = progress.step * batch_size / progress.training_seconds
            self.speed = {"forecast": forecast, "measured": round(measured, 1)}

    def phases(self) -> dict[str, float]:
        """Seconds by phase; planning includes a probe or baseline, evaluation is that during training."""
        phases = {
            "data": self.data_ready - self.started,
            "planning": self.planning,
            "training": self.training,
            "evaluation": self.evaluation,
            "total": self.total,
        }
        return {phase: round(seconds, 2) for phase, seconds in phases.items()}
