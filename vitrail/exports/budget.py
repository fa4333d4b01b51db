"""The time an export may take: how much is left, and whether a step still fits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from vitrail.errors import ExportError, SpecError

Progress = Callable[[int, int], None]


class Budget:
    """A number of minutes from now on; without a number, or with infinity, there is no limit."""

    def __init__(self, minutes: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        if minutes is not None and not minutes > 0:
            raise SpecError("minutes must be positive.", got=f"minutes={minutes:g}.", hint="5, or inf for no limit.")
        self.minutes = None if minutes is None or math.isinf(minutes) else minutes
        self._clock, self._start = clock, clock()

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self.minutes is not None

    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def left(self) -> float:
        """Seconds left: infinity without a limit, negative once the time is up."""
        return math.inf if self.minutes is None else 60 * self.minutes - self.elapsed()

    def shortage(self, needed: float, *, reserved: float = 0.0) -> str:
        """Why a step of `needed` seconds does not fit when the last `reserved` seconds are set aside; "" if it fits."""
        left = self.left() - reserved
        if needed <= left:
            return ""
        unit = "minute" if self.minutes == 1 else "minutes"
        return f"about {needed:.0f} s needed, {max(0.0, left):.0f} s of the {self.minutes:g} {unit} left"

    def watch(self, step: str, progress: Progress | None, *, reserved: float) -> Progress:
        """A progress callback that stops a step with an ExportError as soon as the rest of it does not fit."""
        start = self.elapsed()

        def check(done: int, total: int) -> None:
            if progress is not None:
                progress(done, total)
            needed = (self.elapsed() - start) / done * (total - done)
            if reason := self.shortage(needed, reserved=reserved):
                raise ExportError(f"{step} stopped: {reason}.", hint="more --minutes, or fewer --images.")

        return check
