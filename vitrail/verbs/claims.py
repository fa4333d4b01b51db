"""The claims of the lectures, run at desk scale: verdicts from stored results, and the experiments behind them."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from vitrail import plug
from vitrail.benchmark.claims_page import write_page
from vitrail.benchmark.compare import hardware
from vitrail.benchmark.experiment import Experiment, Laboratory, seconds_per_teraflop
from vitrail.benchmark.results import CLAIMS, RESULTS, ClaimResult, Stored, read_all, read_result, summarise
from vitrail.errors import DataError, SpecError, brief
from vitrail.files import atomic_write
from vitrail.machine import num_cores, processor

SEEDS = 3
WORK = Path("runs") / "claims"
ALL = "all"
OVERHEAD_SECONDS = 12.0  # of a run, besides its teraflops: data, planning, test


def claims(results: str | Path = RESULTS) -> list[ClaimResult]:
    """All claims with the verdicts that follow from the stored results."""
    return read_all(Path(results))


def run_claims(
    name: str,
    *,
    data: str | Path,
    minutes: float | None = None,
    seeds: int = SEEDS,
    work: str | Path = WORK,
    results: str | Path | None = None,
    say: Callable[[str], None] | None = None,
) -> list[ClaimResult]:
    """Run what is missing of a claim, or of `all`, and return the verdicts.

    `data` is a folder with cifar10/*.npz and, for some claims, oxford_pets/*.zip and weights/deit_tiny_patch16_224.
    Each experiment has a core of its own, and starts only if it is expected to end within `minutes`; the same call
    continues. Results are written to `results`, by default a folder in `work`.
    """
    names = list(plug.entries(CLAIMS)) if name == ALL else [name]
    modules = {each: plug.load(CLAIMS, each) for each in names}
    if not Path(data).is_dir():
        raise DataError("the experiments need their data.", got=f"{data} is no folder.", hint="--data FOLDER.")
    if seeds < 1:
        raise SpecError("a claim needs at least one seed.", got=f"{seeds}.", hint=f"{SEEDS}.")
    folder = Path(work) / "results" if results is None else Path(results)
    folder.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, dict[str, Experiment]] = {
        each: {
            experiment.key: experiment
            for seed in range(seeds)
            for experiment in modules[each].experiments(seed).values()
        }
        for each in names
    }
    known = {each: read_result(folder, each).rows for each in plug.entries(CLAIMS)}
    pool = {key: row for rows in known.values() for key, row in rows.items()}
    missing = {
        key: experiment for experiments in wanted.values() for key, experiment in experiments.items() if key not in pool
    }
    say = say or (lambda _: None)
    speed = seconds_per_teraflop() if missing else 0.0
    seconds = {key: speed * each.cost + OVERHEAD_SECONDS for key, each in missing.items()}
    say(f"{len(missing)} experiments to run, about {sum(seconds.values()) / 60 / num_cores():,.0f} minutes.")
    lab = Laboratory(Path(data).absolute(), Path(work).absolute(), plug.import_from("vitrail.verbs.train", "train"))
    lab.work.mkdir(parents=True, exist_ok=True)

    def store() -> None:
        for each, experiments in wanted.items():
            rows = {key: pool[key] for key in experiments if key in pool}
            if rows and rows != known[each]:
                known[each] = {**known[each], **rows}
                _write(folder, Stored(each, known[each], hardware()))

    store()
    for key, row in _run_all(missing, seconds, lab, minutes):
        pool[key] = row
        store()
        say(f"{key}: {_brief_row(row)}")
    return [summarise(read_result(folder, each)) for each in names]


def _run_all(
    experiments: Mapping[str, Experiment], seconds: Mapping[str, float], lab: Laboratory, minutes: float | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run experiments side by side, one per core, if they are expected to end in time; yield each as it ends."""
    began, waiting = time.monotonic(), list(experiments)
    running: dict[Future[dict[str, Any]], str] = {}

    def fits(key: str) -> bool:
        return minutes is None or time.monotonic() - began + seconds[key] <= 60 * minutes

    if not any(map(fits, waiting)):
        return
    num = min(num_cores(), len(experiments))
    with ProcessPoolExecutor(num, mp_context=multiprocessing.get_context("spawn"), initializer=_use_one_core) as pool:
        while waiting or running:
            waiting = [key for key in waiting if fits(key)]
            while waiting and len(running) < num:
                key = waiting.pop(0)
                running[pool.submit(_run, experiments[key], lab)] = key
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield running.pop(future), future.result()


def _use_one_core() -> None:
    import torch

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def _run(experiment: Experiment, lab: Laboratory) -> dict[str, Any]:
    return {**experiment.run(lab), "cpu": processor()}


def _write(folder: Path, stored: Stored) -> None:
    try:
        with atomic_write(folder / f"{stored.name}.json", DataError) as part:
            part.write_text(json.dumps(stored._asdict(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError("the results cannot be written.", got=brief(error), hint="another --out.") from None


def _brief_row(row: Mapping[str, Any]) -> str:
    parts = [f"{100 * row['accuracy']:.1f} %"] if "accuracy" in row else []
    return ", ".join([*parts, f"{row.get('processor_seconds', 0):.0f} s"])


def write_claims_page(page: str | Path, results: str | Path = RESULTS) -> Path:
    """Write the page of all claims, in Markdown, and a figure of each beside it."""
    return write_page(Path(page), Path(results))
