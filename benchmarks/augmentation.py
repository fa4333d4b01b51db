"""Few images from scratch: which augmentation helps, by how often a run sees each of them.

    python benchmarks/augmentation.py cifar10.npz --work DIR --out benchmarks/augmentation.json \
        --lengths 500:2.5,500:5,5000:5,5000:10
    python benchmarks/augmentation.py mnist.npz --work DIR --out benchmarks/augmentation.json \
        --lengths 1000:2 augment.flip_rate=0

`--lengths` lists numbers of labelled images with minutes. One core, processor minutes, `vit_nano_conv4_32`. The images
are those of a seed that no other comparison uses, because the recipe's rule was made with these rows in sight. It was
not tried on anything between 80 and 180 epochs, or below 35.
"""

from __future__ import annotations

from side_by_side import COMMON, Results, check_unfinished_seeds, new_parser, run_all, write_part

MODEL, SEED = "vit_nano_conv4_32", 3
RAND = "augment.policy=rand"
ERASE, CUTMIX = "augment.erase_rate=0.25", "augment.cutmix=1.0"
AUGMENTATIONS: dict[str, tuple[str, ...]] = {
    "crop": (),
    "RandAugment 5": (RAND, "augment.magnitude=5"),
    "RandAugment 8": (RAND, "augment.magnitude=8"),
    "RandAugment 5, erasing": (RAND, "augment.magnitude=5", ERASE),
    "RandAugment 5, erasing, CutMix": (RAND, "augment.magnitude=5", ERASE, CUTMIX),
    "RandAugment 8, erasing, CutMix": (RAND, "augment.magnitude=8", ERASE, CUTMIX),
    "3-Augment, CutMix": ("augment.policy=three", CUTMIX),
    "CutMix": (CUTMIX,),
}


def main() -> None:
    """Run what is missing and write one JSON document."""
    parser = new_parser(minutes=1.0)
    parser.add_argument("settings", nargs="*", help="of all runs")
    parser.add_argument("--lengths", required=True)
    parser.add_argument("--augmentations", default=":".join(AUGMENTATIONS), help="names with colons between them")
    args = parser.parse_args()
    results = Results(args.out, {"model": MODEL, "seed": SEED})
    jobs = {}
    for length in args.lengths.split(","):
        num, minutes = length.split(":")
        data = str(write_part(args.data, args.work / args.data.stem, int(num), SEED)[0])
        for name in args.augmentations.split(":"):
            key = f"{name}; {args.data.stem}, {num} labels, {minutes} minutes-{SEED}"
            words = ["train", data, "--recipe", "scratch", "--model", MODEL, "--seed", str(SEED), *COMMON]
            place = args.work / key.replace(" ", "-").replace(";", "")
            words += ["--minutes", minutes, "--run", str(place), "augment_strength=light"]
            jobs[key] = [[*words, *args.settings, *AUGMENTATIONS[name]]]
    check_unfinished_seeds(jobs, results, restart=args.restart)
    run_all(jobs, results)
    results.write()


if __name__ == "__main__":
    main()
