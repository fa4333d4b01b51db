"""What `vitrail predict` costs beside the bare model with decoding, and whether its memory grows with 20,000 pictures.

python benchmarks/predict.py deit_tiny_patch16_224 --weights WEIGHTS FOLDER > benchmarks/predict.json

FOLDER holds pictures, which are linked under other names until there are 20,000. Then every third of 3,000 of them is
broken, and the rows with errors are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from vitrail.benchmark.compare import hardware, take_turns
from vitrail.data.decode import Pixels
from vitrail.data.image_files import Found, find_images
from vitrail.machine import num_cores
from vitrail.run.open import open_model
from vitrail.verbs.predict import BATCH, predict

MANY, FEW, ROUNDS = 20_000, 1_000, 5


def main() -> None:
    """Measure in turns and print one JSON document."""
    words = argparse.ArgumentParser()
    words.add_argument("model")
    words.add_argument("folder", type=Path)
    words.add_argument("--weights")
    told = words.parse_args()
    with tempfile.TemporaryDirectory(dir=told.folder.parent) as place:
        many, few, broken = (Path(place) / name for name in ("many", "few", "broken"))
        linked(told.folder, many, MANY)
        linked(told.folder, few, FEW)
        linked(told.folder, broken, 3 * FEW)
        for path in sorted(broken.iterdir())[::3]:
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content[: len(content) // 2])
        model = open_model(told.model, told.weights)
        rows = take_turns(
            {
                "bare": lambda: rate(FEW, lambda: bare(model, few)),
                "predict": lambda: rate(FEW, lambda: list(predict(told.model, [few], weights=told.weights))),
            },
            reference="bare",
            unit="pictures/s",
            rounds=ROUNDS,
        )
        memory, seconds = memories(predict(told.model, [many], weights=told.weights))
        errors = sum(row.error is not None for row in predict(told.model, [broken], weights=told.weights))
    document = {
        "model": model.name,
        "batch": BATCH,
        "rows": [row._asdict() for row in rows],
        "many": {"pictures": MANY, "pictures_per_second": round(MANY / seconds, 1), "resident_mib": memory},
        "broken": {"pictures": 3 * FEW, "broken": FEW, "rows_with_errors": errors},
        "hardware": hardware(),
    }
    print(json.dumps(document, indent=1))


def linked(source: Path, place: Path, num: int) -> None:
    """So many names for the pictures of a folder."""
    place.mkdir()
    pictures = sorted(path for path in source.rglob("*") if path.suffix == ".jpg")
    for number in range(num):
        os.link(pictures[number % len(pictures)], place / f"{number:05d}.jpg")


def rate(num: int, work: Any) -> float:
    """Pictures a second."""
    started = time.perf_counter()
    work()
    return num / (time.perf_counter() - started)


def bare(model: Any, folder: Path) -> list[torch.Tensor]:
    """The bare model: batches, decoded by as many threads as there are cores while it looks at the one before."""
    preprocess = model.preprocess
    found = list(find_images([str(folder)]))

    def prepared(each: Found) -> Pixels:
        return preprocess.pixels(preprocess.decode(each.content()))

    starts = range(0, len(found), BATCH)
    with ThreadPoolExecutor(num_cores()) as pool, torch.inference_mode():
        jobs = [[pool.submit(prepared, each) for each in found[start : start + BATCH]] for start in starts]
        return [row for batch in jobs for row in model(preprocess.normalise(np.stack([job.result() for job in batch])))]


def memories(rows: Iterator[Any]) -> tuple[list[float], float]:
    """The resident memory after every thousandth picture, in MiB, and the seconds of all."""
    process, seen = psutil.Process(), []
    started = time.perf_counter()
    for number, _ in enumerate(rows, 1):
        if number % 1000 == 0:
            seen.append(round(process.memory_info().rss / 2**20, 1))
            print(f"{number:,}: {seen[-1]:,} MiB", file=sys.stderr)
    return seen, time.perf_counter() - started


if __name__ == "__main__":
    main()
