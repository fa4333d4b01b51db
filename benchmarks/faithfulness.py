"""Which maps deserve trust: insertion and deletion over ImageNet pictures with real weights.

python benchmarks/faithfulness.py WEIGHTS IMAGENET.zip --pictures 200 > benchmarks/faithfulness.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys

import torch

from vitrail.benchmark.compare import hardware
from vitrail.data.find import open_data
from vitrail.inspection.figure.faithfulness import collect
from vitrail.inspection.sample import spread_out
from vitrail.run.open import open_model


def main() -> None:
    """Judge every map and print one JSON document."""
    words = argparse.ArgumentParser()
    words.add_argument("weights")
    words.add_argument("data")
    words.add_argument("--pictures", type=int, default=200)
    told = words.parse_args()
    model = open_model(told.weights)
    found = collect(model, spread_out(open_data(told.data), told.pictures, model.preprocess), told.pictures)
    rows = []
    for kind in ("insertion", "deletion"):
        base = torch.tensor([getattr(each, f"{kind}_area") for each in found["chance"]], dtype=torch.float64)
        for name, curves in found.items():
            areas = torch.tensor([getattr(each, f"{kind}_area") for each in curves], dtype=torch.float64)
            gains = areas - base
            row = {
                "curve": kind,
                "map": name,
                "area": round(areas.mean().item(), 4),
                "against_chance": round(gains.mean().item(), 4),
                "standard_error": round(gains.std().item() / math.sqrt(len(gains)), 4),
            }
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    document = {"model": model.name, "pictures": told.pictures, "seed": 0, "hardware": hardware(), "rows": rows}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
