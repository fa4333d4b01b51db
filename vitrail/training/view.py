"""The interface through which a run reports its progress; vitrail/progress.py implements it for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from vitrail.metric.score import Score


class StepStatus(NamedTuple):
    """The state of a run after a step, as shown to the user."""

    step: int
    done: float
    epoch: float
    loss: float
    lr: float
    samples_per_second: float
    seconds_left: float


class View(Protocol):
    """Shows the progress of a run."""

    def say(self, text: str) -> None:
        """Show a remark."""

    def show(self, status: StepStatus) -> None:
        """Show the current step."""

    def show_score(self, step: int, score: Score, best: Score, others: Sequence[Score] = ()) -> None:
        """Show a validation score, the best so far, and other scores of the same model."""

    def progress(self, label: str, done: int, total: int) -> None:
        """Show the progress of anything but training steps."""


class SilentView:
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass

    def show(self, status: StepStatus) -> None:
        pass

    def show_score(self, step: int, score: Score, best: Score, others: Sequence[Score] = ()) -> None:
        pass

    def progress(self, label: str, done: int, total: int) -> None:
        pass
