"""How faithful each heatmap method is: insertion and deletion over ImageNet images with real weights.

python benchmarks/faithfulness.py WEIGHTS IMAGENET.zip --images 200 > benchmarks/faithfulness.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys

import torch

from vitrail.benchmark.compare import hardware
from vitrail.data.find import open_data
from vitrail.inspection.figure.faithfulness import collect_curves
from vitrail.inspection.sample import sample_evenly
from vitrail.run.open import open_model


def main() -> None:
    """Evaluate every method and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=200)
    args = parser.parse_args()
    model = open_model(args.weights)
    sample = sample_evenly(open_data(args.data), args.images, model.preprocess)
    curves_by_method = collect_curves(model, sample, args.images)
    rows = []
    for kind in ("insertion", "deletion"):
        baseline = torch.tensor(
            [getattr(each, f"{kind}_area") for each in curves_by_method["chance"]], dtype=torch.float64
        )
        for name, curves in curves_by_method.items():
            areas = torch.tensor([getattr(each, f"{kind}_area") for each in curves], dtype=torch.float64)
            gains = areas - baseline
            row = {
                "curve": kind,
                "map": name,
                "area": round(areas.mean().item(), 4),
                "against_chance": round(gains.mean().item(), 4),
                "standard_error": round(gains.std().item() / math.sqrt(len(gains)), 4),
            }
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    document = {"model": model.name, "pictures": args.images, "seed": 0, "hardware": hardware(), "rows": rows}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
