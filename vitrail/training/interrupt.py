"""Ctrl-C and SIGTERM save the run and end it after the current step; a second Ctrl-C ends it at once."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """A run was saved and interrupted."""

    def __init__(self, step: int, run: Path) -> None:
        super().__init__(f"Saved at step {step:,} in {run}. The same command resumes from there.")


class StopSignal:
    """A context in which the first signal only sets `requested`; outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.requested = False
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self._request) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _request(self, number: int, _: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
