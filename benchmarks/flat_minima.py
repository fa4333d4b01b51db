"""SAM: the largest eigenvalue of the Hessian and the accuracy with and without it, at equal steps and at equal time.

    python benchmarks/flat_minima.py cifar10.npz --work DIR --minutes 10 > benchmarks/flat-minima.json

10,000 images of CIFAR-10. `plain` and `sam` have the same minutes, so SAM takes about half as many steps; `plain, steps
of sam` stops after as many steps as SAM took. The sharpness is that of 256 training images.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from side_by_side import COMMON, mean_and_interval, run_all, write_part

MODEL, RHO, NUM_IMAGES = "vit_nano_conv4_32", 0.05, 10_000
NAMES = ("plain", "sam", "plain, steps of sam")


def sharpness(run: Path, data: str) -> float:
    """The largest eigenvalue of a run."""
    words = ["bench", "sharpness", str(run), data, "--out", str(run / "sharpness.png"), "--json", "--quiet"]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "vitrail", *words], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)["eigenvalue"]


def main() -> None:
    """Run the benchmark and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    from vitrail.benchmark.compare import hardware

    work, seeds = args.work, range(args.seeds)
    data = {seed: str(write_part(args.data, work, NUM_IMAGES, seed)[0]) for seed in seeds}

    def job(name: str, seed: int, *more: str) -> list[list[str]]:
        run = str(work / f"{name}-{seed}" / "model")
        start = ["train", data[seed], "--recipe", "scratch", "--model", MODEL, "--seed", str(seed), "--run", run]
        return [[*start, *COMMON, *more]]

    limit = ("--minutes", str(args.minutes))
    timed = {f"plain-{seed}": job("plain", seed, *limit) for seed in seeds}
    timed |= {f"sam-{seed}": job("sam", seed, *limit, f"sam={RHO}") for seed in seeds}
    rows = run_all(timed, work)
    rows |= run_all(
        {
            f"{NAMES[2]}-{seed}": job(NAMES[2], seed, f"steps={rows[f'sam-{seed}']['steps'][-1]}", "compile=off")
            for seed in seeds
        },
        work,
    )
    summary = {}
    for name in NAMES:
        sharp = [sharpness(work / f"{name}-{seed}" / "model", data[seed]) for seed in seeds]
        accuracy = [rows[f"{name}-{seed}"]["accuracy"] for seed in seeds]
        summary[name] = {"accuracy": mean_and_interval(accuracy), "eigenvalue": mean_and_interval(sharp)}
    document = {"minutes": args.minutes, "rho": RHO, "model": MODEL, "hardware": hardware(), "summary": summary}
    print(json.dumps({**document, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
