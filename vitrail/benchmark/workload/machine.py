"""The speed of this machine's number formats and memory, and what Vitrail therefore does on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from vitrail import machine
from vitrail.benchmark.compare import BenchResult, hardware, take_turns

REFERENCE = "products in float32"


def run(data: str | None = None, *, rounds: int = 5, progress: Callable[[int, int], None] | None = None) -> BenchResult:
    """Measure matrix products in each number format, and memory copies; `data` is ignored."""
    del data
    absent = [f"{dtype}: not supported here" for dtype in machine.DTYPES if machine.matmul_rate(dtype) is None]
    rows = take_turns(
        {
            f"products in {dtype}": partial(_gigaflops, dtype)
            for dtype in machine.DTYPES
            if machine.matmul_rate(dtype) is not None
        },
        reference=REFERENCE,
        unit="GFLOP/s",
        rounds=rounds,
        progress=progress,
    )
    copies = take_turns({"memory": lambda: machine.copy_rate() / 1e9}, reference="memory", unit="GB/s", rounds=rounds)
    setting = {
        "instruction_sets": list(machine.instruction_sets()),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "matrix_side": machine.SIDE,
        "rounds": rounds,
    }
    return BenchResult("machine", setting, hardware(), REFERENCE, (*rows, *copies), tuple(absent), machine.choices())


def _gigaflops(dtype: str) -> float:
    return machine.measure_matmul(dtype) / 1e9
