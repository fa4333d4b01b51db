"""The overhead of `vitrail predict` over the bare model with decoding, and its memory with 20,000 images.

python benchmarks/predict.py deit_tiny_patch16_224 --weights WEIGHTS FOLDER > benchmarks/predict.json

The images in FOLDER are linked under new names until there are 20,000. Then every third of 3,000 images is truncated,
and the results with errors are counted.
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
from vitrail.data.image_files import ImageFile, find_images
from vitrail.machine import num_cores
from vitrail.run.open import open_model
from vitrail.verbs.predict import BATCH_SIZE, predict

MANY, FEW, ROUNDS = 20_000, 1_000, 5


def main() -> None:
    """Measure in turns and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder.parent) as temporary_dir:
        many, few, broken = (Path(temporary_dir) / name for name in ("many", "few", "broken"))
        link_images(args.folder, many, MANY)
        link_images(args.folder, few, FEW)
        link_images(args.folder, broken, 3 * FEW)
        for path in sorted(broken.iterdir())[::3]:
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content[: len(content) // 2])
        model = open_model(args.model, args.weights)
        rows = take_turns(
            {
                "bare": lambda: measure_rate(FEW, lambda: run_bare(model, few)),
                "predict": lambda: measure_rate(FEW, lambda: list(predict(args.model, [few], weights=args.weights))),
            },
            reference="bare",
            unit="images/s",
            rounds=ROUNDS,
        )
        memory, seconds = measure_memory(predict(args.model, [many], weights=args.weights))
        errors = sum(row.error is not None for row in predict(args.model, [broken], weights=args.weights))
    document = {
        "model": model.name,
        "batch": BATCH_SIZE,
        "rows": [row._asdict() for row in rows],
        "many": {"pictures": MANY, "pictures_per_second": round(MANY / seconds, 1), "resident_mib": memory},
        "broken": {"pictures": 3 * FEW, "broken": FEW, "rows_with_errors": errors},
        "hardware": hardware(),
    }
    print(json.dumps(document, indent=1))


def link_images(source: Path, target: Path, num: int) -> None:
    """Fill a folder with `num` links to the images of another."""
    target.mkdir()
    images = sorted(path for path in source.rglob("*") if path.suffix == ".jpg")
    for number in range(num):
        os.link(images[number % len(images)], target / f"{number:05d}.jpg")


def measure_rate(num: int, work: Any) -> float:
    """Images per second."""
    started = time.perf_counter()
    work()
    return num / (time.perf_counter() - started)


def run_bare(model: Any, folder: Path) -> list[torch.Tensor]:
    """Run the bare model on batches that one thread per core decodes in the background."""
    preprocess = model.preprocess
    files = list(find_images([str(folder)]))

    def load(each: ImageFile) -> Pixels:
        return preprocess.resize_and_crop(preprocess.decode(each.content()))

    starts = range(0, len(files), BATCH_SIZE)
    with ThreadPoolExecutor(num_cores()) as pool, torch.inference_mode():
        jobs = [[pool.submit(load, each) for each in files[start : start + BATCH_SIZE]] for start in starts]
        return [row for batch in jobs for row in model(preprocess.normalise(np.stack([job.result() for job in batch])))]


def measure_memory(results: Iterator[Any]) -> tuple[list[float], float]:
    """The resident memory after every thousandth image, in MiB, and the total seconds."""
    process, resident = psutil.Process(), []
    started = time.perf_counter()
    for number, _ in enumerate(results, 1):
        if number % 1000 == 0:
            resident.append(round(process.memory_info().rss / 2**20, 1))
            print(f"{number:,}: {resident[-1]:,} MiB", file=sys.stderr)
    return resident, time.perf_counter() - started


if __name__ == "__main__":
    main()
