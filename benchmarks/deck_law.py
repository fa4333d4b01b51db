"""Does the interval of each constant hold the truth? The decks' scaling law, drawn with noise and fitted again.

    python benchmarks/deck_law.py --out benchmarks/deck-law.json

error = 0.12 + 0.63 (C + 0.52)^-0.32 (arXiv 2106.04560, figure 1) at 12 sizes from 0.01 to 10,000, each run with 2 %
noise. Counted are the draws whose 95 % interval holds the true constant: profile likelihoods, which `vitrail scaling`
uses, with one and with three runs per size; and a bootstrap that resamples the three runs of each size.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.benchmark.compare import hardware
from vitrail.metric.interval import Interval
from vitrail.metric.law import Law, UndecidedLawError, fit_law

TRUE = {"a": 0.12, "b": 0.63, "c": 0.52, "d": 0.32}
SIZES = np.geomspace(0.01, 1e4, 12)
NOISE = 0.02
NUM_RESAMPLES = 100
Runs = NDArray[np.float64]
Intervals = dict[str, Interval]


def draw_runs(seed: int, num_runs: int) -> Runs:
    """The errors of `num_runs` runs at each size."""
    exact = TRUE["a"] + TRUE["b"] * (SIZES + TRUE["c"]) ** -TRUE["d"]
    return exact[:, None] * (1 + NOISE * np.random.default_rng(seed).standard_normal((len(SIZES), num_runs)))


def profile(runs: Runs, seed: int) -> Intervals:
    """The intervals that Vitrail reports; `seed` is for those that need one."""
    del seed
    return fit_law(SIZES, runs).intervals


def bootstrap(runs: Runs, seed: int) -> Intervals:
    """Percentiles of the constants over resampled runs."""
    rng, laws = np.random.default_rng(seed), list[Law]()
    while len(laws) < NUM_RESAMPLES:
        rows = rng.integers(runs.shape[1], size=runs.shape)
        try:
            laws.append(fit_law(SIZES, np.take_along_axis(runs, rows, axis=1)))
        except UndecidedLawError:
            continue
    constants = {name: [law.constants[name] for law in laws] for name in TRUE}
    return {name: tuple(np.percentile(values, [2.5, 97.5]).tolist()) for name, values in constants.items()}


def count(intervals: Callable[[Runs, int], Intervals], num_runs: int, num_draws: int) -> dict[str, object]:
    """How many draws hold each constant, and how many hold all four."""
    found = [intervals(draw_runs(seed, num_runs), seed) for seed in range(num_draws)]
    held = {name: [each[name][0] <= true <= each[name][1] for each in found] for name, true in TRUE.items()}
    return {
        "intervals": intervals.__name__,
        "runs_per_size": num_runs,
        "draws": num_draws,  # seeds 0, 1, ...
        **{name: sum(each) for name, each in held.items()},
        "all": sum(map(all, zip(*held.values(), strict=True))),
    }


def main() -> None:
    """Count, print and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--bootstrap-draws", type=int, default=40, help="fewer: each fits as many laws as 100 others")
    args = parser.parse_args()
    rows = []
    for intervals, num_runs, num_draws in (
        (profile, 1, args.draws),
        (profile, 3, args.draws),
        (bootstrap, 3, args.bootstrap_draws),
    ):
        rows.append(count(intervals, num_runs, num_draws))
        print(rows[-1], flush=True)
    facts = {"law": TRUE, "noise": NOISE, "resamples": NUM_RESAMPLES}
    args.out.write_text(json.dumps({**facts, "hardware": hardware(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
