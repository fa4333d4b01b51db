"""Training progress on standard error: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vitrail.errors import printable
from vitrail.metric.score import Score
from vitrail.percent import percent
from vitrail.training.view import StepStatus

LINE_SECONDS = 10.0


def duration(seconds: float) -> str:
    """Format seconds for people: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class LineView:
    """A line every ten seconds, for pipes, files and services."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.best = ""

    def say(self, text: str) -> None:
        """Print a remark."""
        print(printable(text), file=sys.stderr, flush=True)

    def show(self, status: StepStatus) -> None:
        """Print the current step, at most every ten seconds."""
        if time.monotonic() - self.last < LINE_SECONDS:
            return
        self.last = time.monotonic()
        self.say(
            f"{percent(status.done, 0):>5}  step {status.step:,}  epoch {status.epoch:.1f}  loss {status.loss:.3f}  "
            f"{status.samples_per_second:,.0f}/s  {duration(status.seconds_left)} left{self.best}"
        )

    def show_score(self, step: int, score: Score, best: Score, others: Sequence[Score] = ()) -> None:
        """Print the validation score, and that of the weights saved as best (the loss counts in that choice too)."""
        value, highest = score.metric.format(score.value), score.metric.format(best.value)
        self.best = f"  best {highest}"
        more = "".join(f"; {each.metric.title} {each.text}" for each in others)
        self.say(f"      step {step:,}: {score.metric.title} {value} on validation data (best {highest}){more}")

    def progress(self, label: str, done: int, total: int) -> None:
        """Print progress of anything but training steps."""
        if time.monotonic() - self.last > LINE_SECONDS:
            self.last = time.monotonic()
            self.say(f"{label}: {done:,} of {total:,}")


class BarView(LineView):
    """One progress bar, with remarks printed above it."""

    def __init__(self, bar: Any) -> None:
        super().__init__()
        self.bar = bar
        self.task: Any = None
        self.label = ""

    def say(self, text: str) -> None:
        self.bar.console.print(printable(text), highlight=False, markup=False)

    def _update(self, label: str, done: float, total: float, numbers: str) -> None:
        if self.task is None or label != self.label:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.task, self.label = self.bar.add_task(label, total=total, numbers=numbers), label
        self.bar.update(self.task, completed=done, total=total, numbers=numbers)

    def show(self, status: StepStatus) -> None:
        numbers = (
            f"step {status.step:,}  epoch {status.epoch:.1f}  loss {status.loss:.3f}{self.best}  "
            f"{status.samples_per_second:,.0f}/s  {duration(status.seconds_left)} left"
        )
        self._update("Training", status.done, 1.0, numbers)

    def progress(self, label: str, done: int, total: int) -> None:
        self._update(label, done, total, f"{done:,} of {total:,}")


class QuietView(LineView):
    """Prints nothing."""

    def say(self, text: str) -> None:
        pass


@contextmanager
def progress_view(*, quiet: bool) -> Iterator[LineView]:
    """Choose the view that suits where standard error goes."""
    if quiet:
        yield QuietView()
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[numbers]}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            yield BarView(bar)
    else:
        yield LineView()
