"""CIFAR-10 with few labels: what pretraining, Noisy Student and SAM give at equal time.

    python benchmarks/few_labels.py cifar10.npz --work DIR --minutes 10 > benchmarks/few-labels-10.json
    python benchmarks/few_labels.py cifar10.npz --work DIR --minutes 40 --labels 5000 --methods scratch,mae > ...

The labelled images, equally many of each class, are drawn by the seed; the other training images lose their labels.
Every method has the same minutes in all, on one core; two runs share the machine, each bound to a core of its own.
Pretraining takes PRETRAINED of the minutes, on all training images; training with labels has the rest. The test images
are CIFAR-10's 10,000.

Finished runs are kept in DIR and not run again, so the script goes on where it was stopped; a run that was stopped
itself resumes from its checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from statistics import fmean, stdev
from typing import Any

import numpy as np

MODEL = "vit_nano_conv4_32"
PRETRAINED = 0.5  # of the minutes
TARGETS = ("mae", "mean_colour", "downsized", "full_patch")
METHODS = ("scratch", *TARGETS, "noisy_student", "mae+noisy_student")
T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, two-sided, by the number of seeds


def write_data(source: Path, folder: Path, labels: int, seed: int) -> tuple[Path, Path, Path]:
    """Write the labelled images with the test split, the others, and all training images; return their paths."""
    few, others, everything = (folder / f"{name}-{labels}-{seed}.npz" for name in ("few", "others", "all"))
    if not everything.is_file():
        stored = np.load(source)
        x, y = stored["x_train"], stored["y_train"].ravel()
        order = np.random.default_rng(seed).permutation(len(x))
        chosen = np.concatenate([order[y[order] == label][: labels // 10] for label in range(10)])
        rest = np.setdiff1d(order, chosen)
        np.savez(few, x_train=x[chosen], y_train=y[chosen], x_test=stored["x_test"], y_test=stored["y_test"].ravel())
        np.savez(others, x=x[rest], y=np.zeros(len(rest), dtype=np.int64))
        np.savez(everything, x=x, y=np.zeros(len(x), dtype=np.int64))
    return few, others, everything


def commands(method: str, data: tuple[Path, Path, Path], minutes: float, seed: int, run: Path) -> list[list[str]]:
    """The commands of a method, one after the other; the last one makes the model."""
    few, others, everything = (str(path) for path in data)
    settings = ["sam=0.05"] if method.endswith("+sam") else []
    steps, common = method.removesuffix("+sam").split("+"), ["--seed", str(seed), "--model", MODEL, "--json", "--quiet"]
    found, left, weights = [], minutes, []
    if steps[0] in TARGETS:
        pretrained = str(run / "pretrained")
        left = minutes * (1 - PRETRAINED)
        time_limit = ["--minutes", str(minutes * PRETRAINED)]
        found.append(["train", everything, "--recipe", "pretrain", *time_limit, "--run", pretrained, *common])
        found[-1].append(f"target={steps[0]}")
        weights = ["--weights", pretrained]
    last = ["--minutes", str(left), "--run", str(run / "model"), *weights, *common, *settings]
    if steps[-1] == "noisy_student":
        found.append(["train", few, "--recipe", "noisy_student", "--unlabelled", others, *last])
    else:
        found.append(["train", few, "--recipe", "scratch", *last])
    return found


def run_one(words: list[list[str]], core: int) -> dict[str, Any]:
    """Run the commands of a method on one core; return the result of the last."""
    started, results = time.monotonic(), []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for each in words:
        done = subprocess.run(  # noqa: S603
            ["taskset", "-c", str(core), sys.executable, "-m", "vitrail", *each],  # noqa: S607
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(each)}\n{done.stderr[-2000:]}")
        results.append(json.loads(done.stdout))
    return {
        "accuracy": results[-1]["test"]["top1"],
        "val": results[-1]["val"]["top1"],
        "steps": [each["steps"] for each in results],
        "linear": results[0]["val"].get("linear"),
        "story": results[-1]["story"],
        "seconds": round(time.monotonic() - started, 1),
    }


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and 95 % interval over seeds, by labels and method."""
    keys = sorted({(row["labels"], row["method"]) for row in rows})
    found = []
    for labels, method in keys:
        values = [row["accuracy"] for row in rows if (row["labels"], row["method"]) == (labels, method)]
        half = T_95[len(values)] * stdev(values) / len(values) ** 0.5 if len(values) in T_95 else None
        found.append(
            {"labels": labels, "method": method, "mean": fmean(values), "half_width": half, "seeds": len(values)}
        )
    return found


def main() -> None:
    """Run the benchmark and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--labels", default="500,5000")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    from vitrail.benchmark.compare import hardware

    args.work.mkdir(parents=True, exist_ok=True)
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0))[:2]:
        cores.put(core)

    def work(job: tuple[int, int, str]) -> dict[str, Any]:
        seed, labels, method = job
        run = args.work / f"{method}-{labels}-{args.minutes:g}-{seed}"
        file = run / "row.json"
        if not file.is_file():
            data = write_data(args.data, args.work, labels, seed)
            core = cores.get()
            try:
                row = run_one(commands(method, data, args.minutes, seed, run), core)
            finally:
                cores.put(core)
            file.write_text(json.dumps({"method": method, "labels": labels, "seed": seed, **row}))
        row = json.loads(file.read_text())
        print({key: row[key] for key in ("method", "labels", "seed", "accuracy", "steps")}, file=sys.stderr, flush=True)
        return row

    jobs = [
        (seed, int(labels), method)
        for seed in range(args.seeds)
        for labels in args.labels.split(",")
        for method in args.methods.split(",")
    ]
    with ThreadPoolExecutor(cores.qsize()) as pool:
        rows = list(pool.map(work, jobs))
    document = {"minutes": args.minutes, "model": MODEL, "hardware": hardware(), "summary": summarise(rows)}
    print(json.dumps({**document, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
