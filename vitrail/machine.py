"""What this machine computes fast: measured when it matters, never assumed from a processor's name.

Products in bfloat16 are twice as fast as in float32 on one CPU and thirty times slower on the next. The same holds, to
a lesser degree, for int8, the gradient of the fused attention kernel and the memory layout of convolutions. Code that
has such a choice to make asks here, or times both ways on its own model with `fastest`.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

PAYS = 1.2  # times as fast, before another number format is chosen: more than noise, so that a machine chooses the same
CLEARLY = 1.5  # times as fast, before another kernel than the usual one is chosen
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
TILES = "amx_tile"
ISA_VARIABLE, ISA_WITHOUT_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
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
def avoid_broken_tiles() -> bool:
    """Keep oneDNN from tile instructions (AMX) that the processor lists but that fail; return whether they do.

    Some hypervisors pass AMX on without its description, and the first product in bfloat16 or int8 then ends the
    process. oneDNN reads its limit when it is first used, so whatever builds or opens a model calls this first.
    """
    if TILES not in _list_flags() or os.environ.get(ISA_VARIABLE) or survives(_multiply_bfloat16):
        return False
    os.environ[ISA_VARIABLE] = ISA_WITHOUT_TILES
    return True


def survives(run: Callable[[], Any]) -> bool:
    """Whether a call in a forked process returns; a process that cannot be forked counts as surviving."""
    if not hasattr(os, "fork"):
        return True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads; this child starts none
            pid = os.fork()
    except OSError:
        return True
    if pid == 0:
        try:
            faulthandler.disable()
            torch.set_num_threads(1)
            run()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _multiply_bfloat16() -> None:
    matrix = torch.ones(SIDE, SIDE, dtype=torch.bfloat16, device="cpu")  # whatever the default device is
    torch.matmul(matrix, matrix)


@cache
def matmul_rate(dtype: str, device: str = "cpu") -> float | None:
    """Operations per second of a matrix product, measured once; None where there is no such product."""
    if device == "cpu" and avoid_broken_tiles() and not survives(_multiply_bfloat16) and dtype != "float32":
        return None  # oneDNN was in use before its limit could be set
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


def compare(usual: Callable[[], Any], other: Callable[[], Any]) -> float:
    """How many times as fast the other way is as the usual one, timed in turns."""
    usual()
    other()
    times = [(seconds_of(usual), seconds_of(other)) for _ in range(2 * TRIES)]
    return min(first for first, _ in times) / min(second for _, second in times)


@cache
def other_attention_speed(dtype: str) -> float:
    """Speed of training with the attention kernel that is not usual for this number format, as a multiple of the usual.

    Usual is the fused kernel in float32, and products written out in bfloat16.
    """
    q, k, v = (torch.randn(ATTENTION_SHAPE, dtype=DTYPES[dtype], requires_grad=True) for _ in range(3))

    def fused() -> None:
        F.scaled_dot_product_attention(q, k, v).sum().backward()  # type: ignore[no-untyped-call]

    def unfused() -> None:
        weights = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1)
        (weights @ v).sum().backward()

    return compare(unfused, fused) if dtype == "bfloat16" else compare(fused, unfused)


def fuses_attention(dtype: str) -> bool:
    """Whether attention trains with the fused kernel here."""
    return (dtype != "bfloat16") ^ (other_attention_speed(dtype) > CLEARLY)


@cache
def contiguous_speed(dtype: str) -> float:
    """Speed of training 3 x 3 convolutions on contiguous images, as a multiple of channels_last."""
    channels = CONV_SHAPE[1]

    def step(layout: torch.memory_format) -> Callable[[], None]:
        image = torch.randn(CONV_SHAPE, dtype=DTYPES[dtype]).to(memory_format=layout).requires_grad_()
        weight = torch.randn(channels, channels, 3, 3, dtype=DTYPES[dtype]).to(memory_format=layout).requires_grad_()
        return lambda: F.conv2d(image, weight, padding=1).sum().backward()  # type: ignore[no-untyped-call]

    return compare(step(torch.channels_last), step(torch.contiguous_format))


def uses_channels_last(dtype: str) -> bool:
    """Whether convolutions train in channels_last here."""
    return contiguous_speed(dtype) <= CLEARLY


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's own name for itself."""
    names = _cpu_lines("model name")
    return names[0] if names else platform.processor() or platform.machine()


def instruction_sets() -> tuple[str, ...]:
    """The vector instructions that decide how fast products are, as far as the system lists them."""
    listed = _list_flags()
    return tuple(flag for flag in FLAGS if flag in listed)


def _list_flags() -> set[str]:
    return set(" ".join(_cpu_lines("flags") or _cpu_lines("Features")).split())


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
    """What Vitrail does on this machine; the number format of training is timed again on each model."""
    rates = {dtype: matmul_rate(dtype) or 0.0 for dtype in DTYPES}
    bfloat16, int8 = (rates[dtype] / (rates["float32"] or 1.0) for dtype in ("bfloat16", "int8"))
    return (
        Choice(
            "training and features",
            "bfloat16" if bfloat16_is_faster() else "float32",
            f"bfloat16 products are {bfloat16:.2f} times as fast",
        ),
        Choice(
            "exports", "int8 is promising" if int8 > PAYS else "fp32", f"int8 products are {int8:.2f} times as fast"
        ),
        *(
            choice
            for dtype in ("float32", *(["bfloat16"] if bfloat16_is_faster() else []))
            for choice in _kernels(dtype)
        ),
        *([Choice("tile instructions (AMX)", "off", "they are listed, but fail here")] if avoid_broken_tiles() else []),
        Choice("threads", str(torch.get_num_threads()), f"{num_cores()} cores for this process"),
    )


def _kernels(dtype: str) -> tuple[Choice, Choice]:
    """The attention kernel and the memory layout of convolutions in training."""
    other = "fused" if dtype == "bfloat16" else "unfused"
    return (
        Choice(
            f"attention in {dtype}",
            "fused" if fuses_attention(dtype) else "unfused",
            f"{other} is {other_attention_speed(dtype):.2f} times as fast as usual",
        ),
        Choice(
            f"convolutions in {dtype}",
            "channels_last" if uses_channels_last(dtype) else "contiguous",
            f"contiguous is {contiguous_speed(dtype):.2f} times as fast as channels_last",
        ),
    )
