"""CIFAR-10 with few labels: what pretraining, Noisy Student and SAM give at equal time.

    python benchmarks/few_labels.py cifar10.npz --work DIR --minutes 10 --out benchmarks/few-labels-10.json \
        --plot docs/figures/few-labels.png
    python benchmarks/few_labels.py cifar10.npz --work DIR --minutes 40 --labels 5000 --methods scratch,mae --out ...

The labelled images, equally many of each class, are drawn by the seed; the other training images lose their labels.
Every method has the same processor minutes in all, on one core; two runs share the machine (side_by_side.py).
Pretraining takes PRETRAINED of the minutes, on all training images; training with labels has the rest. The test images
are CIFAR-10's 10,000.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from side_by_side import (
    COMMON,
    Results,
    Rows,
    check_unfinished_seeds,
    mean_and_interval,
    new_parser,
    run_all,
    write_part,
)

MODEL = "vit_nano_conv4_32"
PRETRAINED = 0.5  # of the minutes
TARGETS = ("mae", "mean_colour", "downsized", "full_patch")
METHODS = ("scratch", *TARGETS, "noisy_student", "mae+noisy_student")
WORDS = {"scratch": "from scratch", "mae": "MAE", "noisy_student": "Noisy Student", "sam": "SAM"}
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
    """Run what is missing and write one JSON document."""
    parser = new_parser(minutes=10.0)
    parser.add_argument("--labels", default="500,5000")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--plot", type=Path, help="a figure of the rows that there are")
    args = parser.parse_args()
    keys = {
        f"{method}-{labels}-{seed}": (method, int(labels), seed)
        for seed in range(args.seeds)
        for labels in args.labels.split(",")
        for method in args.methods.split(",")
    }
    results = Results(args.out, {"minutes": args.minutes, "model": MODEL})
    check_unfinished_seeds(keys, results, restart=args.restart)
    jobs = {
        name: commands(method, write_part(args.data, args.work, num, seed), args.minutes, seed, args.work / name)
        for name, (method, num, seed) in keys.items()
    }
    run_all(jobs, results)
    summary = summarise(results.rows)
    results.write(summary)
    if args.plot is not None:
        draw(summary, args.plot)


def summarise(rows: Rows) -> list[dict[str, Any]]:
    """The mean accuracy of each method and number of labels over its seeds, those of earlier sessions included.

    `gain` is what it adds to training from scratch with the same seed on the same kind of processor.
    """
    groups: dict[tuple[str, int], dict[tuple[str, str], float]] = {}
    for name, row in rows.items():
        method, labels, seed = name.rsplit("-", 2)
        groups.setdefault((method, int(labels)), {})[seed, row["cpu"]] = row["accuracy"]
    summary = []
    for (method, labels), values in sorted(groups.items(), key=lambda group: (group[0][1], group[0][0])):
        scratch = groups.get((METHODS[0], labels), {})
        gains = [value - scratch[seed] for seed, value in values.items() if seed in scratch]
        gain = mean_and_interval(gains) if gains and method != METHODS[0] else None
        summary.append({"method": method, "labels": labels, **mean_and_interval(list(values.values())), "gain": gain})
    return summary


def draw(summary: list[dict[str, Any]], path: Path) -> None:
    """Draw the accuracy of every method, a panel for each number of labels; a dot for each seed."""
    from matplotlib.figure import Figure

    from vitrail.inspection.drawing import save_figure

    numbers = sorted({row["labels"] for row in summary})
    figure = Figure(figsize=(4.2 * len(numbers), 3.4), layout="constrained")
    for axis, num in zip(figure.subplots(1, len(numbers), squeeze=False)[0], numbers, strict=True):
        rows = sorted((row for row in summary if row["labels"] == num), key=lambda row: row["mean"])
        for place, row in enumerate(rows):
            values = [100 * value for value in row["values"]]
            axis.barh(place, fmean(values), xerr=100 * (row["half_width"] or 0), color="C0", alpha=0.35, ecolor="C0")
            axis.plot(values, [place] * len(values), "o", color="C0", markersize=4)
        axis.set_yticks(range(len(rows)), [title(row["method"]) for row in rows])
        axis.set(title=f"{num:,} labels", xlabel="test accuracy (%)", xlim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
    with path.open("wb") as file:
        save_figure(figure, file, "png", 120)


def title(method: str) -> str:
    """The name of a method in words."""
    return ", then ".join(WORDS.get(part, part.replace("_", " ")) for part in method.split("+")).replace(
        "then SAM", "SAM"
    )


if __name__ == "__main__":
    main()
