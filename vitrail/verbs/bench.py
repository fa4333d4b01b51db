"""Speed on this machine, side by side with what else is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail import plug
from vitrail.benchmark.compare import Bench
from vitrail.errors import SpecError

WORKLOADS = "vitrail.benchmark.workload"


def bench(
    workload: str,
    data: str | Path | None = None,
    *,
    rounds: int = 5,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Bench:
    """Run a workload: `machine`, `training` or `data`, each contender in turn, with medians, ratios and their spread.

    `options` are those of the workload: `workers` of data, `model` of training.
    """
    run = plug.load(WORKLOADS, workload).run
    unknown = [name for name in options if name not in run.__annotations__]
    if unknown:
        raise SpecError(
            f"the workload {workload} has no such option.",
            got=", ".join(f"{name}={options[name]}" for name in unknown) + ".",
            hint="vitrail bench --help.",
        )
    return run(None if data is None else str(data), rounds=rounds, progress=progress, **options)
