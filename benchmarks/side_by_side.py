"""Runs of `vitrail train` side by side, each on a core of its own, resumable: what long comparisons share.

A finished run is kept as DIR/NAME/row.json and not run again; a run that was stopped resumes from its checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from statistics import fmean, stdev
from typing import Any

import numpy as np

T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, two-sided, by the number of seeds
COMMON = ("--json", "--quiet")


def write_part(source: Path, folder: Path, num: int, seed: int) -> tuple[Path, Path, Path]:
    """Write `num` labelled images of CIFAR-10 with its test split, the others, and all training images, without labels.

    The labelled ones, equally many of each class, are drawn by the seed.
    """
    few, others, everything = (folder / f"{name}-{num}-{seed}.npz" for name in ("few", "others", "all"))
    if not everything.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        stored = np.load(source)
        x, y = stored["x_train"], stored["y_train"].ravel()
        order = np.random.default_rng(seed).permutation(len(x))
        chosen = np.concatenate([order[y[order] == label][: num // 10] for label in range(10)])
        rest = np.setdiff1d(order, chosen)
        np.savez(few, x_train=x[chosen], y_train=y[chosen], x_test=stored["x_test"], y_test=stored["y_test"].ravel())
        np.savez(others, x=x[rest], y=np.zeros(len(rest), dtype=np.int64))
        np.savez(everything, x=x, y=np.zeros(len(x), dtype=np.int64))
    return few, others, everything


def run_all(jobs: Mapping[str, Sequence[Sequence[str]]], work: Path) -> dict[str, dict[str, Any]]:
    """Run the commands of each job, one after the other, two jobs at a time; return the result of each by name."""
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0))[:2]:
        cores.put(core)

    def work_on(name: str) -> dict[str, Any]:
        file = work / name / "row.json"
        if not file.is_file():
            core = cores.get()
            try:
                row = _run_one(jobs[name], core)
            finally:
                cores.put(core)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(row))
        row = json.loads(file.read_text())
        print(name, {key: row[key] for key in ("accuracy", "steps")}, file=sys.stderr, flush=True)
        return row

    with ThreadPoolExecutor(cores.qsize()) as pool:
        return dict(zip(jobs, pool.map(work_on, jobs), strict=True))


def _run_one(commands: Sequence[Sequence[str]], core: int) -> dict[str, Any]:
    started, results = time.monotonic(), []
    for words in commands:
        done = subprocess.run(  # noqa: S603
            ["taskset", "-c", str(core), sys.executable, "-m", "vitrail", *words],  # noqa: S607
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}\n{done.stderr[-2000:]}")
        results.append(json.loads(done.stdout))
    last = results[-1]
    return {
        "accuracy": last["test"]["top1"] if last.get("test") else None,
        "val": last["val"].get("top1"),
        "steps": [each.get("steps") for each in results],
        "linear": results[0]["val"].get("linear"),
        "story": last["story"],
        "seconds": round(time.monotonic() - started, 1),
    }


def mean_and_interval(values: Sequence[float]) -> dict[str, Any]:
    """The mean over seeds, and half of its 95 % interval."""
    half = T_95[len(values)] * stdev(values) / len(values) ** 0.5 if len(values) in T_95 else None
    return {"mean": fmean(values), "half_width": half, "seeds": len(values), "values": list(values)}
