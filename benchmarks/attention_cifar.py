"""CIFAR-10 with convolutions and with attention in their place, at equal time: ResNets and Vision Transformers.

    python benchmarks/attention_cifar.py cifar10.npz --work DIR --minutes 6 --out benchmarks/attention-cifar-6.json

Every network has the same processor minutes on one core; two runs share the machine (side_by_side.py). All are trained
by the recipe `scratch`, on 49,000 images. Few validate and test, so that the minutes of slow networks, too, go into
training: 1,000 and 2,500, others for each seed. The ResNets have about the same FLOPs, 81 to 102 million per
image: LR-Net's layer is cheaper, so it has 13 units instead of 8. Parameters, 1.9 to 2.9 million, follow;
they are listed beside the accuracy, as are the steps that fitted into the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import COMMON, Results, check_unfinished_seeds, mean_and_interval, new_parser, run_all

VIT = "vit_nano_conv4_32"
METHODS: dict[str, tuple[str, ...]] = {
    "conv": ("resnet26_32",),
    "sasa": ("resnet26_sasa_32",),
    "lrnet": ("resnet26_lrnet_32", "layers=[2,4,6,1]"),
    "san_pairwise": ("san10_pairwise_32",),
    "san_patchwise": ("san10_patchwise_32",),
    "axial": ("resnet26_axial_32",),
    "augmented": ("resnet26_augmented_32",),
    "vit": (VIT,),
    "vit_local": (VIT, "attention=local", "attention.window=3"),
    "vit_axial": (VIT, "attention=axial"),
    "perceiver": ("perceiver_nano_32",),
}
"""For each row, a model of the catalogue and what changes in its specification."""


NUM_TEST = 2_500
VAL_SHARE = "val_share=0.02"


def write_data(source: Path, folder: Path, seed: int) -> Path:
    """Write CIFAR-10 with fewer test images, drawn by the seed."""
    path = folder / f"cifar10-{seed}.npz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        stored = np.load(source)
        rows = np.random.default_rng(seed).permutation(len(stored["x_test"]))[:NUM_TEST]
        tests = {name: stored[name][rows] for name in ("x_test", "y_test")}
        np.savez(path, x_train=stored["x_train"], y_train=stored["y_train"], **tests)
    return path


def command(data: Path, method: str, minutes: float, seed: int, run: Path) -> list[str]:
    """The command that trains one network."""
    name, *changes = METHODS[method]
    words = ["train", str(data), "--recipe", "scratch", "--minutes", str(minutes), "--run", str(run)]
    return [
        *words,
        "--seed",
        str(seed),
        "--model",
        name,
        *COMMON,
        VAL_SHARE,
        *(f"model.{change}" for change in changes),
    ]


def cost(method: str) -> dict[str, Any]:
    """The parameters and FLOPs of a network for ten classes."""
    from vitrail.catalogue import build, on_meta, spec_named

    name, *changes = METHODS[method]
    spec = spec_named(name).override({"num_classes": 10}).override_words(changes)
    with on_meta():
        model = build(spec)
    return {
        "model": " ".join(METHODS[method]),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "mflops": round(model.flops() / 1e6, 1),
    }


def main() -> None:
    """Run what is missing and write one JSON document."""
    parser = new_parser(minutes=6.0)
    parser.add_argument("--methods", default=",".join(METHODS))
    args = parser.parse_args()
    methods = args.methods.split(",")
    costs = {method: cost(method) for method in methods}  # first: a name that does not exist ends the benchmark here
    results = Results(args.out, {"minutes": args.minutes, "costs": costs})
    data = [write_data(args.data, args.work, seed) for seed in range(args.seeds)]
    jobs = {
        f"{method}-{seed}": [command(data[seed], method, args.minutes, seed, args.work / f"{method}-{seed}")]
        for seed in range(args.seeds)
        for method in methods
    }
    check_unfinished_seeds(jobs, results, restart=args.restart)
    rows = run_all(jobs, results)
    results.write(
        {
            method: mean_and_interval([rows[f"{method}-{seed}"]["accuracy"] for seed in range(args.seeds)])
            for method in methods
        }
    )


if __name__ == "__main__":
    main()
