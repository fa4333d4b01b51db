"""Are labels that were swapped on purpose found? One in twenty training pictures gets a wrong label, then:

python benchmarks/labels.py PETS.zip --weights WEIGHTS > benchmarks/labels.json

trains by the recipe `probe` in five folds and looks at the list of labels that are probably wrong.
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

SHARE, FOLDS = 0.05, 5


def main() -> None:
    """Swap, train and count for each seed; print one JSON document."""
    words = argparse.ArgumentParser()
    words.add_argument("data")
    words.add_argument("--weights", required=True)
    words.add_argument("--seeds", type=int, default=2)
    told = words.parse_args()
    source = open_data(told.data)
    assert isinstance(source, Table)
    document = {
        "share": SHARE,
        "folds": FOLDS,
        "runs": [found(source, told.weights, seed) for seed in range(told.seeds)],
        "hardware": hardware(),
    }
    print(json.dumps(document, indent=1))


def found(source: Table, weights: str, seed: int) -> dict[str, float]:
    """Precision and recall at the top of the list, as long as there are wrong labels, and of all of it."""
    random = np.random.default_rng(seed)
    train_rows = np.flatnonzero(source.splits == SPLITS.index("train"))
    swapped = random.choice(train_rows, round(SHARE * len(train_rows)), replace=False)
    labels, num = source.labels.copy(), len(source.classes)
    labels[swapped] = (labels[swapped] + random.integers(1, num, len(swapped))) % num
    wrong = {source.names[row] for row in swapped}
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
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
