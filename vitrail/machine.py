"""What this machine computes fast: measured when it matters, never assumed from a processor's name.

Products in bfloat16 are twice as fast as in float32 on one CPU and thirty times slower on the next. The same holds, to
a lesser degree, for int8, the gradient of the fused attention kernel and the memory layout of convolutions. Code that
has such a choice to make asks here, or times both ways on its own model with `fastest`.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

PAYS = 1.05  # times as fast, before another way is chosen
TRIES = 3
SIDE = 512  # of the square matrices that are multiplied
COPIED_BYTES = 2**26
ATTENTION_SHAPE = (32, 3, 64, 64)  # batch, heads, tokens, width of a head
CONV_SHAPE = (32, 64, 16, 16)  # batch, channels, rows, columns
FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
    "i8mm",
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


def fastest(run: Callable[[], Any], device: torch.device | str = "cpu", *, tries: int = TRIES) -> float:
    """The seconds of the fastest of a few calls, after one that warms up."""
    run()
    return min(seconds_of(run, device) for _ in range(tries))


def seconds_of(run: Callable[[], Any], device: torch.device | str = "cpu") -> float:
    """The seconds of one call, until the device has finished."""
    started = now(device)
    run()
    return now(device) - started


def now(device: torch.device | str = "cpu") -> float:
    """The time, when everything that was asked of the device is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@cache
def matmul_rate(dtype: str, device: str = "cpu") -> float | None:
    """Operations per second of a matrix product, measured once; None where there is no such product."""
    try:
        return measure_matmul(dtype, device)
    except (RuntimeError, NotImplementedError):
        return None


def measure_matmul(dtype: str, device: str = "cpu") -> float:
    """Operations per second of a matrix product."""
    left, right = (torch.randn(SIDE, SIDE, device=device).mul(20).to(DTYPES[dtype]) for _ in range(2))
    product = torch._int_mm if dtype == "int8" else torch.matmul  # noqa: SLF001 - PyTorch's only int8 product
    return 2 * SIDE**3 / fastest(lambda: product(left, right), device)


def bfloat16_is_faster(device: torch.device | str = "cpu") -> bool:
    """Whether products in bfloat16 are worth trying: whether the hardware multiplies faster in it than in float32."""
    kind = torch.device(device).type
    return (matmul_rate("bfloat16", kind) or 0.0) > PAYS * (matmul_rate("float32", kind) or 0.0)


def copy_rate() -> float:
    """Bytes per second that are read and written when memory is copied."""
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / fastest(lambda: target.copy_(source))


def attention_seconds(dtype: str, *, fused: bool) -> float:
    """Attention forward and back, by PyTorch's fused kernel or written out as products."""
    q, k, v = (torch.randn(ATTENTION_SHAPE, dtype=DTYPES[dtype], requires_grad=True) for _ in range(3))

    def run() -> None:
        if fused:
            heads = F.scaled_dot_product_attention(q, k, v)
        else:
            heads = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1) @ v
        heads.sum().backward()  # type: ignore[no-untyped-call]

    return fastest(run)


def conv_seconds(dtype: str, *, channels_last: bool) -> float:
    """A 3 x 3 convolution forward and back, in one memory layout or the other."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    channels = CONV_SHAPE[1]
    image = torch.randn(CONV_SHAPE, dtype=DTYPES[dtype]).to(memory_format=layout).requires_grad_()
    weight = torch.randn(channels, channels, 3, 3, dtype=DTYPES[dtype]).to(memory_format=layout).requires_grad_()

    def run() -> None:
        F.conv2d(image, weight, padding=1).sum().backward()  # type: ignore[no-untyped-call]

    return fastest(run)


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's own name for itself."""
    names = _cpu_lines("model name")
    return names[0] if names else platform.processor() or platform.machine()


def instruction_sets() -> tuple[str, ...]:
    """The vector instructions that decide how fast products are, as far as the system lists them."""
    listed = set(" ".join(_cpu_lines("flags") or _cpu_lines("Features")).split())
    return tuple(flag for flag in FLAGS if flag in listed)


def _cpu_lines(key: str) -> list[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    return [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key][:1]


class Choice(NamedTuple):
    """What is done on this machine, and the measurement that says so."""

    what: str
    chosen: str
    why: str


def choices() -> tuple[Choice, ...]:
    """What Vitrail does here by measurement; a model is timed again, whole, before it is trained."""
    products = {dtype: matmul_rate(dtype) for dtype in DTYPES}
    usable = ["float32", *(["bfloat16"] if bfloat16_is_faster() else [])]
    return (
        _faster("training and features", ("float32", products["float32"]), ("bfloat16", products["bfloat16"])),
        _faster("exports", ("float32 first", products["float32"]), ("int8 first", products["int8"])),
        *(
            _faster(
                f"attention, training in {dtype}",
                ("fused kernel", 1 / attention_seconds(dtype, fused=True)),
                ("written out", 1 / attention_seconds(dtype, fused=False)),
            )
            for dtype in usable
        ),
        *(
            _faster(
                f"convolutions in {dtype}",
                ("contiguous", 1 / conv_seconds(dtype, channels_last=False)),
                ("channels_last", 1 / conv_seconds(dtype, channels_last=True)),
            )
            for dtype in usable
        ),
        Choice("threads", str(torch.get_num_threads()), f"{num_cores()} cores for this process"),
    )


def _faster(what: str, usual: tuple[str, float | None], other: tuple[str, float | None]) -> Choice:
    """The other way where it is clearly faster."""
    (name, rate), (other_name, other_rate) = usual, other
    if rate is None or other_rate is None:
        return Choice(what, name, f"{other_name} cannot be measured here")
    ratio = other_rate / rate
    return Choice(what, other_name if ratio > PAYS else name, f"{other_name} is {ratio:.2f} times as fast as {name}")
