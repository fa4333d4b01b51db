"""The memory of pretraining on many files: a folder of 1,000 images beside one of 100,000.

    python benchmarks/many_files.py --work DIR > benchmarks/many-files.json

The files are links to a thousand different images. Each run takes the same number of steps in a process of its own; its
memory is the largest resident set that the system has seen. That varies by some megabytes from run to run, so each is
repeated, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from PIL import Image

COUNTS = (1_000, 100_000)
REPEATS = 4
SETTINGS = ("steps=60", "batch_size=64", "precision=float32", "cache_gb=0")


def write_files(folder: Path, num: int) -> None:
    """Write a thousand images, and hard links to them under other names."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(num):
        path = folder / f"{number:06d}.jpg"
        if path.exists():
            continue
        if number < COUNTS[0]:
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
        else:
            os.link(folder / f"{number % COUNTS[0]:06d}.jpg", path)


def main() -> None:
    """Run the benchmark and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--one", type=Path)
    args = parser.parse_args()
    if args.one is not None:
        from vitrail.verbs.train import train

        result = train(args.one, recipe="pretrain", model="vit_nano_conv4_32", run=args.work, settings=SETTINGS)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"megabytes": round(memory, 1), "steps": result.steps, "seconds": result.seconds}))
        return
    from vitrail.benchmark.compare import hardware

    megabytes: dict[int, list[float]] = {num: [] for num in COUNTS}
    for repeat in range(REPEATS):
        for num in COUNTS:
            write_files(args.work / str(num), num)
            run = args.work / f"run-{num}-{repeat}"
            command = [sys.executable, __file__, "--one", str(args.work / str(num)), "--work", str(run)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
            megabytes[num].append(json.loads(done.stdout)["megabytes"])
    rows = [
        {"files": num, "megabytes": values, "mean": round(fmean(values), 1), "sd": round(stdev(values), 1)}
        for num, values in megabytes.items()
    ]
    print(json.dumps({"settings": SETTINGS, "hardware": hardware(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
