"""The guard: catches non-finite values and diverging losses before they reach the weights."""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, stdev

WINDOW = 10  # steps over which the loss is averaged
MAX_RISE = 2.0  # times the lowest average so far
MARGIN = 1.0  # the most that is added to that, so that losses may fluctuate
FLOOR = 0.1  # what is added at least, as a fraction of the first average
MAX_FIRST_RISE = 10.0  # times the first loss and the margin: a single loss, in training or validation, has diverged
NUM_ERRORS = 3.0  # standard errors of the average that are added to the floor: a few hard batches are no divergence


class Guard:
    """Watches the losses of a run; its state is part of checkpoints, so that resuming changes nothing."""

    def __init__(self, state: dict[str, list[float]] | None = None) -> None:
        state = state or {}
        self.recent: deque[float] = deque(state.get("recent", []), maxlen=WINDOW)
        self.lowest: float = next(iter(state.get("lowest", [])), math.inf)
        # Checkpoints of earlier versions do not have it; infinity stands for the margin that they used.
        self.first: float = next(iter(state.get("first", [])), math.inf)

    @property
    def state(self) -> dict[str, list[float]]:
        """The state to resume from, without infinity, which JSON cannot represent."""
        means = {"lowest": self.lowest, "first": self.first}
        return {"recent": list(self.recent), **{name: [mean] for name, mean in means.items() if math.isfinite(mean)}}

    def find_problem(self, loss: float, norm: float) -> str | None:
        """Describe what is wrong with this step, if anything; such a step must not be taken."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        self.recent.append(loss)
        if len(self.recent) < WINDOW:
            # A loss can also diverge before there is an average to compare it with.
            return f"the loss rose from {self.recent[0]:.3g} to {loss:.3g}" if self.has_diverged(loss) else None
        mean = fmean(self.recent)
        if math.isinf(self.lowest):
            self.first = mean
        self.lowest = min(self.lowest, mean)
        error = stdev(self.recent) / math.sqrt(WINDOW)
        margin = min(MARGIN, FLOOR * abs(self.first) + NUM_ERRORS * error)
        if mean - self.lowest > (MAX_RISE - 1) * max(self.lowest, 0.0) + margin:
            return f"the loss rose from {self.lowest:.3g} to {mean:.3g} (means of {WINDOW} steps)"
        return None

    def has_diverged(self, loss: float) -> bool:
        """Whether a single loss is out of all proportion to the first ones."""
        first = self.first if math.isfinite(self.first) else next(iter(self.recent), math.inf)
        return loss > MAX_FIRST_RISE * (max(first, 0.0) + MARGIN)
