"""Attention forward and backward on a CPU: the fused kernel against plain matrix products, in turns.

    python benchmarks/attention.py > benchmarks/attention.json

The evidence for the exception in vitrail/nn/dot_product.py: training in bfloat16 on a CPU.
"""

from __future__ import annotations

import json
import time

import torch
import torch.nn.functional as F

from vitrail.benchmark.compare import hardware, take_turns

SHAPES = ((256, 4, 64, 32), (64, 3, 197, 64), (16, 12, 197, 64), (4, 12, 577, 64))
REPEATS, ROUNDS = 4, 5


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's kernel."""
    return F.scaled_dot_product_attention(q, k, v)


def unfused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k' / sqrt(E)) v."""
    return (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1) @ v


def contender(function, shape: tuple[int, ...], dtype: torch.dtype):  # noqa: ANN001, ANN201
    """Measure passes per second, forward and backward."""
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(shape, dtype=dtype)

    def run() -> float:
        started = time.perf_counter()
        for _ in range(REPEATS):
            function(*inputs).backward(gradient)
        return REPEATS / (time.perf_counter() - started)

    run()
    return run


def main() -> None:
    """Run all shapes and print one JSON document."""
    rows = []
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            contenders = {"fused": contender(fused, shape, dtype), "written out": contender(unfused, shape, dtype)}
            measured = take_turns(contenders, reference="fused", unit="passes/s", rounds=ROUNDS)
            rows += [{"shape": shape, "dtype": str(dtype), **row._asdict()} for row in measured]
    print(json.dumps({"hardware": hardware(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
