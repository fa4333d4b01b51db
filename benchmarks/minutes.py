"""How a run's minutes are used: the forecast beside the measured speed, and the share of the time that trains.

    export ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2  # a newer machine behaves like an older one
    python benchmarks/minutes.py pets --weights deit_tiny_patch16_224 --rounds 2 > benchmarks/minutes-avx2.json

Fine-tuning and probing, in turns. The second of the two committed rounds met a machine whose speed changed.
Training from scratch is in scratch-5-avx2.json.
A probe is over when its features are computed, so its share of the minutes is not the point; its forecast is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

MINUTES = {"finetune": 4.0, "probe": 2.0}


def train(recipe: str, data: str, weights: str, seed: int) -> dict[str, Any]:
    """Run `vitrail train` in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", data, "--weights", weights, "--recipe", recipe, "--minutes", str(MINUTES[recipe])]
        words += ["--seed", str(seed), "--run", f"{folder}/run", "--json", "--quiet"]
        command = [sys.executable, "-m", "vitrail", *words]
        result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603
    speed, phases = result["images_per_second"], result["seconds_by_phase"]
    return {
        "recipe": recipe,
        "minutes": MINUTES[recipe],
        "seed": seed,
        "images_per_second": speed,
        "forecast_over_measured": round(speed["forecast"] / speed["measured"], 3),
        "seconds_by_phase": phases,
        "training_share": round(phases["training"] / (60 * MINUTES[recipe]), 3),
        "top1": (result.get("test") or result["val"])["top1"],
    }


def main() -> None:
    """Run the benchmark and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    from vitrail.benchmark.compare import hardware

    forced = {key: os.environ[key] for key in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY") if key in os.environ}
    rows = []
    for seed in range(args.rounds):
        for recipe in MINUTES:
            rows.append(train(recipe, args.data, args.weights, seed))
            print(rows[-1], file=sys.stderr, flush=True)
    print(json.dumps({"hardware": {**hardware(), **forced}, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
