"""Ctrl-C and SIGTERM end a run after the step at hand, saved; a second Ctrl-C ends it at once."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """A run was interrupted and saved."""

    def __init__(self, step: int, run: Path) -> None:
        super().__init__(f"Saved at step {step:,} in {run}. The same command goes on from there.")


class Stop:
    """Within it, the first signal only sets `asked`; outside the main thread signals are left alone."""

    def __init__(self) -> None:
        self.asked = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
