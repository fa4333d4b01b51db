"""Benchmarks on this machine, side by side with other installed libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail import plug
from vitrail.benchmark.compare import BenchResult
from vitrail.errors import SpecError

WORKLOADS = "vitrail.benchmark.workload"


def bench(
    workload: str,
    data: str | Path | None = None,
    *,
    rounds: int = 5,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> BenchResult:
    """Run a workload (`machine`, `training` or `data`) with its contenders in turns; return medians and ratios.

    `options` depend on the workload: `workers` for data, `model` for training.
    """
    run = plug.load(WORKLOADS, workload).run
    unknown = [name for name in options if name not in run.__annotations__]
    if unknown:
        raise SpecError(
            f"the workload {workload} does not have this option.",
            got=", ".join(f"{name}={options[name]}" for name in unknown) + ".",
            hint="vitrail bench --help.",
        )
    return run(None if data is None else str(data), rounds=rounds, progress=progress, **options)
