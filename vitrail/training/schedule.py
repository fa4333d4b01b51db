"""The learning rate over a run, as a share of its peak: a function of how much of the run is done, 0 to 1.

So a schedule fits any number of steps and any number of minutes, and ends at zero exactly when the run does.
"""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["cosine", "linear", "wsd"]
STABLE = (
    0.8  # of the run, after which warm-up-stable-decay goes down (arXiv 2404.06395 decays in the last tenth or two)
)


def rate(schedule: Schedule, done: float, warmup: float) -> float:
    """The share of the peak when this much of the run is done: up in a line over the warm-up, then as its name says."""
    done = min(max(done, 0.0), 1.0)
    if done < warmup:
        return done / warmup
    after = (done - warmup) / (1.0 - warmup)
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * after))
    if schedule == "linear":
        return 1.0 - after
    return min(1.0, (1.0 - done) / (1.0 - max(STABLE, warmup)))
