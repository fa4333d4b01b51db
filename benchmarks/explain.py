"""The cost of an explanation: page and figure against the model's forward passes, and ViT-L's memory.

python benchmarks/explain.py WEIGHTS PHOTO.jpg > benchmarks/explain.json
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median

ROUNDS, PASSES = 7, 12
LARGE = """
import resource, sys, numpy, vitrail
model = vitrail.create_model("vit_large_patch16_224").eval()
explanation = vitrail.explain(model, numpy.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype="uint8"))
size = len(explanation.page())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, size / 2**20)
"""


def main() -> None:
    """Time both alternately and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("photo")
    args = parser.parse_args()
    import io

    import torch

    from vitrail import explain
    from vitrail.benchmark.compare import hardware
    from vitrail.inspection.drawing import save_figure
    from vitrail.run.open import open_model
    from vitrail.verbs.explain import DPI

    model = open_model(args.weights)
    forward, whole = [], []
    for _ in range(ROUNDS + 1):
        explanation = explain(model, args.photo)
        started = time.perf_counter()
        with torch.inference_mode():
            for _ in range(PASSES):
                model(explanation.inputs)
        forward.append(time.perf_counter() - started)
        started = time.perf_counter()
        explanation = explain(model, args.photo)
        page = explanation.page()
        save_figure(explanation.figure(), io.BytesIO(), "png", DPI)
        whole.append(time.perf_counter() - started)
    large = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True).stdout.split()  # noqa: S603
    document = {
        "model": model.name,
        "seconds_of_12_forward_passes": [round(each, 4) for each in forward[1:]],
        "seconds_of_an_explanation": [round(each, 4) for each in whole[1:]],
        "limit": round(3 * median(forward[1:]) + 1.0, 3),
        "median": round(median(whole[1:]), 3),
        "page_mib": round(len(page) / 2**20, 3),
        "vit_large_peak_gib": round(float(large[0]), 2),
        "vit_large_page_mib": round(float(large[1]), 2),
        "own_peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "hardware": hardware(),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
