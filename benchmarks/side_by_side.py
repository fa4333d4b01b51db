"""Runs of `vitrail train` side by side, each on a core of its own, resumable: what long comparisons share.

Minutes are processor minutes (processor_minutes.py), so that other work on the machine does not count. A finished run
is a row of the output file and is not run again, in this session or another; a run that was stopped resumes from its
checkpoint, if that is still there. The runs of one seed are compared with each other, so one kind of processor runs
them all: a seed that another kind has begun is refused, or with `--restart` begins again. Each kind has its own runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from statistics import fmean, stdev
from typing import Any

import numpy as np

T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, two-sided, by the number of seeds
COMMON = ("--json", "--quiet")
Rows = dict[str, dict[str, Any]]


def new_parser(*, minutes: float) -> argparse.ArgumentParser:
    """The arguments of every such comparison."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=_work_dir, required=True, help="for runs and parts of the data")
    parser.add_argument("--out", type=Path, required=True, help="the JSON document; rows that it has are not run again")
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--restart", action="store_true", help="forget unfinished seeds of another kind of processor")
    return parser


def _work_dir(text: str) -> Path:
    """A folder for this kind of processor, so that no run resumes, or counts, on another one."""
    return Path(text) / re.sub(r"[^a-z0-9]+", "-", kind_of_processor().lower()).strip("-")


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


class Results:
    """The output file: a JSON document whose `rows` are the finished runs by name."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path, self.facts = path, json.loads(json.dumps(facts))
        stored = json.loads(path.read_text()) if path.is_file() else {**self.facts, "rows": {}}
        if any(stored[key] != value for key, value in self.facts.items()):
            raise SystemExit(f"{path} holds another comparison: { ({key: stored[key] for key in self.facts}) }.")
        self.rows: Rows = stored["rows"]
        self.lock = threading.Lock()

    def write(self, summary: object = None) -> None:
        """Write the rows, and a summary once there is one."""
        from vitrail.benchmark.compare import hardware

        document = {**self.facts, "hardware": hardware(), "summary": summary, "rows": self.rows}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.replace(self.path)

    def add(self, name: str, row: dict[str, Any]) -> None:
        """Keep a finished run."""
        with self.lock:
            self.rows[name] = row
            self.write()


def kind_of_processor() -> str:
    """The processor's name and its vector instructions: machines of one name differ in these, and so in speed."""
    from vitrail.machine import instruction_sets, processor

    return f"{processor()} ({' '.join(instruction_sets())})"


def check_unfinished_seeds(names: Iterable[str], results: Results, *, restart: bool) -> None:
    """Refuse unfinished seeds that another kind of processor began, or forget their rows; a name ends in its seed."""
    seeds: dict[str, list[str]] = {}
    for name in names:
        seeds.setdefault(name.rpartition("-")[2], []).append(name)
    for group in seeds.values():
        if all(name in results.rows for name in group):
            continue
        foreign = [name for name in group if name in results.rows and results.rows[name]["cpu"] != kind_of_processor()]
        if foreign and not restart:
            raise SystemExit(
                f"{', '.join(foreign)} ran on another processor ({results.rows[foreign[0]]['cpu']}), and this seed has "
                f"runs that are missing; this is {kind_of_processor()}. --restart begins the seed again."
            )
        for name in foreign:
            del results.rows[name]


def run_all(
    jobs: Mapping[str, Sequence[Sequence[str]]],
    results: Results,
    *,
    read: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None,
) -> Rows:
    """Run the commands of each job, one after the other, two jobs at a time; return the result of each by name.

    `read` turns the JSON documents of a job's commands into a row; by default, that of a classifier.
    """
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0))[:2]:
        cores.put(core)

    def work_on(name: str) -> None:
        core = cores.get()
        try:
            started = time.monotonic()
            row = (read or classifier_row)([_run(words, core) for words in jobs[name]])
            row |= {"seconds": round(time.monotonic() - started, 1), "cpu": kind_of_processor()}
        finally:
            cores.put(core)
        results.add(name, row)
        print(name, row, file=sys.stderr, flush=True)

    missing = [name for name in jobs if name not in results.rows]
    with ThreadPoolExecutor(cores.qsize()) as pool:
        list(pool.map(work_on, missing))
    return {name: results.rows[name] for name in jobs}


def _run(words: Sequence[str], core: int) -> dict[str, Any]:
    """Run one command on one core, `vitrail` or a Python script; return its JSON document."""
    program = [sys.executable]
    if not words[0].endswith(".py"):
        program.append(str(Path(__file__).with_name("processor_minutes.py")))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = ["taskset", "-c", str(core), *program, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def classifier_row(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """What a job's last command says of its classifier."""
    last = documents[-1]
    return {
        "accuracy": last["test"]["top1"] if last.get("test") else None,
        "val": last["val"].get("top1"),
        "steps": [each.get("steps") for each in documents],
        "linear": documents[0]["val"].get("linear"),
        "story": last["story"],
    }


def mean_and_interval(values: Sequence[float]) -> dict[str, Any]:
    """The mean over seeds, and half of its 95 % interval."""
    half = T_95[len(values)] * stdev(values) / len(values) ** 0.5 if len(values) in T_95 else None
    return {"mean": fmean(values), "half_width": half, "seeds": len(values), "values": list(values)}
