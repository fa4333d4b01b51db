"""Speed, side by side with what else is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitrail import plug
from vitrail.benchmark.compare import Bench

WORKLOADS = "vitrail.benchmark.workload"


def bench(
    workload: str,
    data: str | Path,
    *,
    workers: int = 2,
    rounds: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> Bench:
    """Run a workload: each contender in turn, several rounds, with medians, ratios and their spread."""
    return plug.load(WORKLOADS, workload).run(str(data), workers=workers, rounds=rounds, progress=progress)
