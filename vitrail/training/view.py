"""What a run tells while it goes on; whoever shows it to people is above."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Moment(NamedTuple):
    """A step of a run, as it is shown."""

    step: int
    done: float
    epoch: float
    loss: float
    lr: float
    images_per_second: float
    seconds_left: float


class View(Protocol):
    """Where a run is shown: live on a terminal, in lines elsewhere, or not at all."""

    def say(self, text: str) -> None:
        """A remark."""

    def show(self, moment: Moment) -> None:
        """How things stand."""

    def judged(self, step: int, score: float, best: float, metric: str) -> None:
        """A score on the validation pictures, and the best so far."""

    def progress(self, label: str, done: int, total: int) -> None:
        """How much is done of something other than steps."""


class Silent:
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass

    def show(self, moment: Moment) -> None:
        pass

    def judged(self, step: int, score: float, best: float, metric: str) -> None:
        pass

    def progress(self, label: str, done: int, total: int) -> None:
        pass
