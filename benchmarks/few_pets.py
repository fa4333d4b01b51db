"""Oxford Pets with DeiT-Ti weights and five labels per breed: what the other training images add without labels.

    python benchmarks/few_pets.py pets.zip --weights deit_tiny_patch16_224 --work DIR --out benchmarks/few-pets.json

The labelled images are drawn by the seed; the other training images lose their labels; the test images are the zip's.
Every method but the probe, which is over before that, has the same processor minutes in all, on one core
(side_by_side.py). `pretrain` goes on from DeiT's weights with MAE on all training images, for half of the minutes.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from side_by_side import COMMON, Results, check_unfinished_seeds, mean_and_interval, new_parser, run_all

METHODS = ("probe", "pretrain", "noisy_student", "pretrain+noisy_student")
NUM_LABELLED = 5  # per breed


def write_images(source: Path, folder: Path, seed: int) -> tuple[Path, Path, Path]:
    """Write the labelled images with the test split, the others, and all training images, the last two unlabelled."""
    few, others, everything = (folder / f"{name}-{seed}" for name in ("few", "others", "all"))
    if everything.is_dir():
        return few, others, everything
    with zipfile.ZipFile(source) as archive:
        names = [name for name in archive.namelist() if name.lower().endswith(".jpg")]
        train = sorted(name for name in names if "train/" in name)
        order = np.random.default_rng(seed).permutation(len(train))
        num_taken: dict[str, int] = {}
        for name in [*(train[row] for row in order), *(name for name in names if "test/" in name)]:
            split, breed, file = name.split("/")[-3:]
            num_taken[breed] = num_taken.get(breed, 0) + (split == "train")
            labelled = split == "test" or num_taken[breed] <= NUM_LABELLED
            places = [few / split / breed / file] if labelled else [others / file]
            places += [] if split == "test" else [everything.with_suffix(".partial") / file]
            for place in places:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.read(name))
    everything.with_suffix(".partial").rename(everything)
    return few, others, everything


def commands(method: str, data: tuple[Path, Path, Path], weights: str, minutes: float, run: Path) -> list[list[str]]:
    """The commands of a method, one after the other; the last one makes the model."""
    few, others, everything = (str(path) for path in data)
    found, left = [], minutes
    if method.startswith("pretrain"):
        left = minutes / 2
        pretrain = ["train", everything, "--recipe", "pretrain", "--weights", weights, "--minutes", str(left)]
        weights = str(run / "pretrained")
        found.append([*pretrain, "--run", weights, *COMMON])
    student = method.endswith("noisy_student")
    recipe = ["--recipe", "noisy_student", "--unlabelled", others] if student else ["--recipe", "probe"]
    last = ["train", few, *recipe, "--weights", weights, "--minutes", str(left), "--run", str(run / "model"), *COMMON]
    return [*found, last]


def main() -> None:
    """Run what is missing and write one JSON document."""
    parser = new_parser(minutes=10.0)
    parser.add_argument("--weights", required=True)
    args = parser.parse_args()
    results = Results(args.out, {"minutes": args.minutes, "labels_per_class": NUM_LABELLED})
    jobs = {}
    for seed in range(args.seeds):
        data = write_images(args.data, args.work, seed)
        for method in METHODS:
            words = commands(method, data, args.weights, args.minutes, args.work / f"{method}-{seed}")
            jobs[f"{method}-{seed}"] = [[*each, "--seed", str(seed)] for each in words]
    check_unfinished_seeds(jobs, results, restart=args.restart)
    rows = run_all(jobs, results)
    results.write(
        {
            name: mean_and_interval([rows[f"{name}-{seed}"]["accuracy"] for seed in range(args.seeds)])
            for name in METHODS
        }
    )


if __name__ == "__main__":
    main()
