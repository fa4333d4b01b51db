"""The guard: numbers that are not finite, and losses that run away, are caught before they reach the weights."""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean

WINDOW = 10  # steps over which a loss is averaged before it is believed
RUNAWAY = 2.0  # times the lowest average so far
MARGIN = 1.0  # above that, so that small losses may move


class Guard:
    """Watches the losses of a run; what it remembers goes into checkpoints, so that resuming changes nothing."""

    def __init__(self, memory: dict[str, list[float]] | None = None) -> None:
        self.recent: deque[float] = deque((memory or {}).get("recent", []), maxlen=WINDOW)
        self.lowest: float = (memory or {}).get("lowest", [math.inf])[0]

    @property
    def memory(self) -> dict[str, list[float]]:
        """What a new guard needs to go on; infinity is no number in JSON."""
        return {"recent": list(self.recent), **({} if math.isinf(self.lowest) else {"lowest": [self.lowest]})}

    def objection(self, loss: float, norm: float) -> str | None:
        """What is wrong with this step, or nothing; a step that is objected to must not be taken."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        self.recent.append(loss)
        if len(self.recent) < WINDOW:
            # A loss can also explode before there is an average to compare it with.
            first = self.recent[0]
            return f"the loss rose from {first:.3g} to {loss:.3g}" if loss > 10 * (first + MARGIN) else None
        mean = fmean(self.recent)
        self.lowest = min(self.lowest, mean)
        if mean > RUNAWAY * self.lowest + MARGIN:
            return f"the loss rose from {self.lowest:.3g} to {mean:.3g} (means of {WINDOW} steps)"
        return None
