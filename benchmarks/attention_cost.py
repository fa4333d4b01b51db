"""What attention costs as images grow: time and peak memory, forward and backward, against the number of tokens.

    python benchmarks/attention_cost.py --plot docs/figures/attention-cost.png > benchmarks/attention-cost.json

One layer of one head of width 64, one sample, one thread, float32; processor time, so that other programs do not count.
Contenders take turns in each round. "Masked full" is full attention under the window's mask, which is what local
attention equals; "Perceiver" is cross-attention from 64 latents to the tokens. Memory is the peak of a process of its
own, one for each contender, above what it held before the layer was built. Slopes are fitted to the three largest
numbers of tokens, where overhead no longer counts. Axial attention gets there last: its projections and copies grow
with N, and rows must be longer than the width before the products count more. So the cheap ones go on where the others
end.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from vitrail.benchmark.compare import hardware, take_turns
from vitrail.nn.attention import axial, full, local
from vitrail.nn.dot_product import attend
from vitrail.tokens import Layout, Tokens

NUM_TOKENS = (256, 1024, 4096, 16384, 65536, 262144)
MAX_QUADRATIC = 16384
QUADRATIC = ("full", "masked full")
WIDTH, WINDOW, NUM_LATENTS, NUM_FIT = 64, 7, 64, 3
MIN_SECONDS = 0.1  # of one measurement; small layers run several times
MODES = ("forward", "training")
CLEAR_REFS = Path("/proc/self/clear_refs")


class MaskedFull(full.Attention):
    """Full attention under the mask of the windows."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(width=WIDTH, heads=1)
        row, column = (torch.arange(layout.num_cells) // side % layout.grid[0] for side in (layout.grid[1], 1))
        apart = [(place[:, None] - place).abs_() for place in (row.to(torch.int16), column.to(torch.int16))]
        self.pairs = torch.maximum(*apart)[None] <= WINDOW // 2

    def forward(self, tokens: Tokens) -> torch.Tensor:
        """As full attention, with a mask of all pairs."""
        return self.merge(attend(*self.split(tokens), pair_mask=self.pairs))


class Reading(full.CrossAttention):
    """A Perceiver's latents read the tokens."""

    def __init__(self) -> None:
        super().__init__(width=WIDTH, heads=1)
        self.latents = nn.Parameter(torch.randn(1, NUM_LATENTS, WIDTH))

    def forward(self, tokens: Tokens) -> torch.Tensor:  # type: ignore[override]
        """From tokens to latents."""
        return super().forward(Tokens(self.latents, Layout((NUM_LATENTS,))), tokens)


# A name, and the layer for a layout: any module from Tokens to vectors.
CONTENDERS: dict[str, Callable[[Layout], nn.Module]] = {
    "full": lambda _: full.Attention(width=WIDTH, heads=1),
    "masked full": MaskedFull,
    f"local, window {WINDOW}": lambda _: local.Attention(local.Spec(window=WINDOW), width=WIDTH, heads=1),
    "axial": lambda _: axial.Attention(width=WIDTH, heads=1),
    f"Perceiver, {NUM_LATENTS} latents": lambda _: Reading(),
}


def make_pass(name: str, num_tokens: int, mode: str) -> Callable[[], None]:
    """One pass of a new layer over a square image of this many tokens."""
    layout = Layout((math.isqrt(num_tokens),) * 2)
    layer = CONTENDERS[name](layout)
    x = torch.randn(1, num_tokens, WIDTH, requires_grad=mode == "training")

    def run() -> None:
        with torch.set_grad_enabled(mode == "training"):
            output = layer(Tokens(x, layout))
            if mode == "training":
                output.sum().backward()

    return run


def contender(name: str, num_tokens: int, mode: str) -> Callable[[], float]:
    """Measure passes per second."""
    run = make_pass(name, num_tokens, mode)
    started = time.process_time()
    run()
    repeats = max(1, round(MIN_SECONDS / (time.process_time() - started)))

    def measure() -> float:
        started = time.process_time()
        for _ in range(repeats):
            run()
        return repeats / (time.process_time() - started)

    return measure


def peak_bytes() -> int:
    """The peak memory of this process, since the last reset where the system can reset it."""
    if CLEAR_REFS.exists():
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def print_memory(name: str, num_tokens: int, mode: str) -> None:
    """In a process of its own: the bytes that one pass adds at its peak."""
    make_pass(name, 64, mode)()  # loads the kernels
    if CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5")
    before = peak_bytes()
    make_pass(name, num_tokens, mode)()
    print(peak_bytes() - before)


def measure_memory(name: str, num_tokens: int, mode: str) -> int:
    """Start that process."""
    words = [sys.executable, __file__, "--memory", name, str(num_tokens), mode]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)  # noqa: S603 - this file


def slope(rows: list[dict[str, float]], key: str) -> float:
    """The exponent of the growth with the number of tokens, past the overhead."""
    fitted = [(row["tokens"], row[key]) for row in rows[-NUM_FIT:]]
    return round(float(np.polyfit(*np.log(np.array(fitted)).T, 1)[0]), 2)


def measure(rounds: int, counts: tuple[int, ...]) -> list[dict]:
    """One row for each contender and number of tokens."""
    rows: dict[tuple[str, int], dict] = {
        (name, num): {"name": name, "tokens": num}
        for name in CONTENDERS
        for num in counts
        if num <= MAX_QUADRATIC or name not in QUADRATIC
    }
    for num in counts:
        names = [name for name in CONTENDERS if (name, num) in rows]
        for mode in MODES:
            contenders = {name: contender(name, num, mode) for name in names}
            for row in take_turns(contenders, reference=names[0], unit="passes/s", rounds=rounds):
                rows[row.name, num][f"{mode}_seconds"] = 1 / row.value
                if names[0] == "full":
                    rows[row.name, num][f"{mode}_speed_of_full"] = [row.ratio, row.ratio_low, row.ratio_high]
            del contenders
            for name in names:
                rows[name, num][f"{mode}_bytes"] = measure_memory(name, num, mode)
            print(f"{num} tokens, {mode}", file=sys.stderr)
    return list(rows.values())


def plot(document: dict, path: Path) -> None:
    """Time and memory of a training pass against the number of tokens, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    for axis, key, label, scale in zip(
        figure.subplots(1, 2),
        ("training_seconds", "training_bytes"),
        ("forward and backward (ms)", "peak memory (MB)"),
        (1e3, 1e-6),
        strict=True,
    ):
        for name in CONTENDERS:
            rows = [row for row in document["rows"] if row["name"] == name]
            exponent = document["slopes"][name][key]
            numbers = [row["tokens"] for row in rows], [row[key] * scale for row in rows]
            axis.loglog(*numbers, "o-", markersize=3, label=f"{name} (N^{exponent:.2f})")
        axis.set(xlabel="tokens", ylabel=label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="upper left")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure everything and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=NUM_TOKENS)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--memory", nargs=3, metavar=("NAME", "TOKENS", "MODE"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.memory:
        name, num_tokens, mode = options.memory
        print_memory(name, int(num_tokens), mode)
        return
    rows = measure(options.rounds, tuple(options.tokens))
    keys = [f"{mode}_{what}" for mode in MODES for what in ("seconds", "bytes")]
    slopes = {name: {key: slope([r for r in rows if r["name"] == name], key) for key in keys} for name in CONTENDERS}
    setting = {"width": WIDTH, "heads": 1, "batch": 1, "threads": 1, "window": WINDOW, "rounds": options.rounds}
    document = {"hardware": hardware(), "setting": setting, "slopes": slopes, "rows": rows}
    print(json.dumps(document, indent=1))
    if options.plot:
        plot(document, options.plot)


if __name__ == "__main__":
    main()
