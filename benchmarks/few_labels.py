"""CIFAR-10 with few labels: what pretraining, Noisy Student and SAM give at equal time.

    python benchmarks/few_labels.py cifar10.npz --work DIR --minutes 10 > benchmarks/few-labels-10.json
    python benchmarks/few_labels.py cifar10.npz --work DIR --minutes 40 --labels 5000 --methods scratch,mae > ...

The labelled images, equally many of each class, are drawn by the seed; the other training images lose their labels.
Every method has the same minutes in all, on one core; two runs share the machine, each bound to a core of its own.
Pretraining takes PRETRAINED of the minutes, on all training images; training with labels has the rest. The test images
are CIFAR-10's 10,000.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from side_by_side import COMMON, mean_and_interval, run_all, write_part

MODEL = "vit_nano_conv4_32"
PRETRAINED = 0.5  # of the minutes
TARGETS = ("mae", "mean_colour", "downsized", "full_patch")
METHODS = ("scratch", *TARGETS, "noisy_student", "mae+noisy_student")
LIKE_SCRATCH = ("optimizer=muon", "lr=0.02", "layer_decay=1.0", "batch_size=128", "teacher=finetuned")


def commands(method: str, data: tuple[Path, Path, Path], minutes: float, seed: int, run: Path) -> list[list[str]]:
    """The commands of a method, one after the other; the last one makes the model."""
    few, others, everything = (str(path) for path in data)
    settings = ["sam=0.05"] if method.endswith("+sam") else []
    steps = method.removesuffix("+sam").split("+")
    common = ["--seed", str(seed), "--model", MODEL, *COMMON]
    found, left, weights = [], minutes, []
    if steps[0] in TARGETS:
        pretrained, limit = str(run / "pretrained"), ["--minutes", str(minutes * PRETRAINED)]
        words = ["train", everything, "--recipe", "pretrain", *limit, "--run", pretrained, *common]
        found.append([*words, f"target={steps[0]}"])
        left, weights = minutes * (1 - PRETRAINED), ["--weights", pretrained]
    last = ["--minutes", str(left), "--run", str(run / "model"), *weights, *common, *settings]
    if steps[-1] == "noisy_student":
        like_scratch = LIKE_SCRATCH if weights else ()
        found.append(["train", few, "--recipe", "noisy_student", "--unlabelled", others, *last, *like_scratch])
    else:
        found.append(["train", few, "--recipe", "scratch", *last])
    return found


def main() -> None:
    """Run the benchmark and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--labels", default="500,5000")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    from vitrail.benchmark.compare import hardware

    keys = {
        f"{method}-{labels}-{args.minutes:g}-{seed}": (method, int(labels), seed)
        for seed in range(args.seeds)
        for labels in args.labels.split(",")
        for method in args.methods.split(",")
    }
    jobs = {
        name: commands(method, write_part(args.data, args.work, num, seed), args.minutes, seed, args.work / name)
        for name, (method, num, seed) in keys.items()
    }
    rows = run_all(jobs, args.work)
    summary = [
        {
            "method": method,
            "labels": num,
            **mean_and_interval([rows[name]["accuracy"] for name, key in keys.items() if key[:2] == (method, num)]),
        }
        for method, num in dict.fromkeys(key[:2] for key in keys.values())
    ]
    document = {"minutes": args.minutes, "model": MODEL, "hardware": hardware(), "summary": summary}
    print(json.dumps({**document, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
