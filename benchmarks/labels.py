"""Does Vitrail find wrong labels? One in twenty training images gets a wrong label, then:

python benchmarks/labels.py PETS.zip --weights WEIGHTS > benchmarks/labels.json

trains with the recipe `probe` in five folds and scores the list of labels that are probably wrong.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitrail import train
from vitrail.benchmark.compare import hardware
from vitrail.data.find import open_data
from vitrail.data.table import SPLITS, Table
from vitrail.report.run import OUT_OF_FOLD
from vitrail.run.predictions import read_predictions, suspects

SWAPPED_FRACTION, FOLDS = 0.05, 5


def main() -> None:
    """Swap, train and count for each seed; print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    source = open_data(args.data)
    assert isinstance(source, Table)
    document = {
        "share": SWAPPED_FRACTION,
        "folds": FOLDS,
        "runs": [measure(source, args.weights, seed) for seed in range(args.seeds)],
        "hardware": hardware(),
    }
    print(json.dumps(document, indent=1))


def measure(source: Table, weights: str, seed: int) -> dict[str, float]:
    """Precision and recall of the list, and of its top with as many entries as there are wrong labels."""
    rng = np.random.default_rng(seed)
    train_rows = np.flatnonzero(source.splits == SPLITS.index("train"))
    swapped = rng.choice(train_rows, round(SWAPPED_FRACTION * len(train_rows)), replace=False)
    labels, num = source.labels.copy(), len(source.classes)
    labels[swapped] = (labels[swapped] + rng.integers(1, num, len(swapped))) % num
    wrong = {source.names[row] for row in swapped}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(replace(source, labels=labels), weights=weights, recipe="probe", folds=FOLDS, run=run, seed=seed)
        listed = [row.path for row in suspects(read_predictions(run / OUT_OF_FOLD))]
    top = set(listed[: len(wrong)])
    return {
        "seed": seed,
        "pictures": len(train_rows),
        "wrong": len(wrong),
        "precision_at_the_top": len(top & wrong) / len(top),
        "recall_at_the_top": len(top & wrong) / len(wrong),
        "listed": len(listed),
        "precision_of_the_list": len(set(listed) & wrong) / len(listed),
        "recall_of_the_list": len(set(listed) & wrong) / len(wrong),
    }


if __name__ == "__main__":
    main()
