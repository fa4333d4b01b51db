"""Learning-rate schedules: the fraction of the peak as a function of the fraction of the run that is done.

So a schedule fits any number of steps or minutes, and reaches zero exactly when the run ends.
"""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["cosine", "linear", "wsd"]
DECAY_START = 0.8  # fraction of the run at which wsd starts to decay (arXiv 2404.06395: in the last 10 to 20 %)


def lr_scale(schedule: Schedule, done: float, warmup: float) -> float:
    """The fraction of the peak learning rate at this point of the run: linear warm-up, then the schedule."""
    done = min(max(done, 0.0), 1.0)
    if done < warmup:
        return done / warmup
    after = (done - warmup) / (1.0 - warmup)
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * after))
    if schedule == "linear":
        return 1.0 - after
    return min(1.0, (1.0 - done) / (1.0 - max(DECAY_START, warmup)))
