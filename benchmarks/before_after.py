"""Whether a change of the code costs speed: two versions in turns, training steps and the data path.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py --before ../before cifar10.npz pets.zip --rounds 5 > benchmarks/before-after.json

Each measurement is a process of its own. Ratios are after / before, paired within a round; above 1 is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
TRAINING = """
import json, sys
from vitrail.benchmark.workload import training
result = training.run(sys.argv[1], model=sys.argv[2], rounds=int(sys.argv[3]))
print(json.dumps(1000 / next(row.value for row in result.rows if row.name == "whole step")))
"""
DATA = """
import json, sys, time
from vitrail.data.augment import Augment
from vitrail.data.find import open_data
from vitrail.data.transform import Preprocess
source = open_data(sys.argv[1]).split("train")
options = {"batch_size": 64, "augment": Augment(), "shuffle": True, "workers": 2}
try:
    from vitrail.data.prepare.image import image_loader
    loader = image_loader(source, Preprocess(), **options)
except ImportError:
    from vitrail.data.loader import Loader
    loader = Loader(source=source, preprocess=Preprocess(), **options)
speeds = []
for epoch in range(3):
    started = time.perf_counter()
    num = sum(len(batch.names) for batch in loader.epoch(epoch))
    speeds.append(num / (time.perf_counter() - started))
print(json.dumps(max(speeds)))
"""


def measure(code: Path, script: str, words: list[str]) -> float:
    """Run a script with one version of the code."""
    environment = {**os.environ, "PYTHONPATH": str(code)}
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=code)  # noqa: S603
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure in turns and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("arrays", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    from vitrail.benchmark.compare import hardware

    arrays, images = str(args.arrays.resolve()), str(args.images.resolve())
    workloads = {
        "training steps a second, vit_nano_conv4_32": (TRAINING, [arrays, "vit_nano_conv4_32", "12"]),
        "training steps a second, vit_tiny_patch4_32": (TRAINING, [arrays, "vit_tiny_patch4_32", "4"]),
        "augmented images a second": (DATA, [images]),
    }
    rows: list[dict[str, Any]] = []
    for name, (script, words) in workloads.items():
        pairs = []
        for number in range(args.rounds):
            order = (args.before.resolve(), HERE) if number % 2 == 0 else (HERE, args.before.resolve())
            found = {code: measure(code, script, words) for code in order}
            pairs.append((found[args.before.resolve()], found[HERE]))
        ratios = [after / before for before, after in pairs]
        rows.append(
            {
                "name": name,
                "ratio": round(statistics.median(ratios), 4),
                "ratio_low": round(min(ratios), 4),
                "ratio_high": round(max(ratios), 4),
                "before": [round(before, 3) for before, _ in pairs],
                "after": [round(after, 3) for _, after in pairs],
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)
    print(json.dumps({"rounds": args.rounds, "hardware": hardware(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
