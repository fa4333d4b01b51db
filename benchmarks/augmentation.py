"""CIFAR-10 with few labels: which augmentation training from scratch needs, by how often it sees each image.

    python benchmarks/augmentation.py cifar10.npz --work DIR --out benchmarks/augmentation.json

`vit_nano_conv4_32`, one core, processor minutes. The images are those of a seed that no other comparison uses, because
the recipe's own choice was made with these rows in sight.
"""

from __future__ import annotations

from side_by_side import COMMON, Results, check_unfinished_seeds, new_parser, run_all, write_part

MODEL, SEED = "vit_nano_conv4_32", 3
LENGTHS = ((500, 2.5), (500, 5.0), (5000, 5.0), (5000, 10.0))  # labels, minutes
RAND = "augment.policy=rand"
MORE = ("augment.erase_rate=0.25", "augment.cutmix=1.0")
AUGMENTATIONS: dict[str, tuple[str, ...]] = {
    "crop and flip": (),
    "RandAugment 5": (RAND, "augment.magnitude=5"),
    "RandAugment 8": (RAND, "augment.magnitude=8"),
    "RandAugment 5, erasing, CutMix": (RAND, "augment.magnitude=5", *MORE),
    "RandAugment 8, erasing, CutMix": (RAND, "augment.magnitude=8", *MORE),
    "3-Augment, CutMix": ("augment.policy=three", MORE[1]),
    "CutMix": (MORE[1],),
}


def main() -> None:
    """Run what is missing and write one JSON document."""
    args = new_parser(minutes=1.0).parse_args()
    results = Results(args.out, {"model": MODEL, "seed": SEED})
    jobs = {}
    for num, minutes in LENGTHS:
        data = str(write_part(args.data, args.work, num, SEED)[0])
        for name, settings in AUGMENTATIONS.items():
            key = f"{name}, {num} labels, {minutes:g} minutes-{SEED}"
            words = ["train", data, "--recipe", "scratch", "--model", MODEL, "--seed", str(SEED), *COMMON]
            length = ["--minutes", str(minutes), "--run", str(args.work / key.replace(" ", "-"))]
            jobs[key] = [[*words, *length, "augment_strength=light", *settings]]
    check_unfinished_seeds(jobs, results, restart=args.restart)
    run_all(jobs, results)
    results.write()


if __name__ == "__main__":
    main()
