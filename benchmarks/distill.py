"""DeiT on 10,000 images of CIFAR-10: a plain Vision Transformer with and without a teacher, at equal time.

    python benchmarks/distill.py cifar10.npz --work DIR --minutes 6 --out benchmarks/distill.json
    python benchmarks/distill.py cifar10.npz --work DIR --minutes 6 --draws 4 --out benchmarks/distill-draws-4.json

Two teachers are trained on the same images first: a ResNet and a Vision Transformer with a convolutional stem. A pass
of theirs costs 1.2 and 1.8 times as much as one of the student. The students are plain: without a teacher, with hard
and soft labels from the ResNet, with a distillation token, and with the transformer as their teacher. The seeds are the
students': all have the same images and the same teachers. Every run has one core, its minutes are processor minutes,
and the teacher's passes count as the student's time; with `--draws` its answers are kept.
"""

from __future__ import annotations

from pathlib import Path

from side_by_side import (
    COMMON,
    Results,
    check_unfinished_seeds,
    mean_and_interval,
    new_parser,
    run_all,
    write_part,
)

TEACHERS = {
    "convolutional": ["--model", "resnet26_32"],
    "transformer": ["--model", "vit_nano_conv4_32"],
}
STUDENT, WITH_TOKEN = "vit_nano_patch4_32", "deit_nano_distilled_patch4_32"
STUDENTS: dict[str, tuple[str | None, str, tuple[str, ...]]] = {
    "none": (None, STUDENT, ()),
    "hard": ("convolutional", STUDENT, ("distillation=hard",)),
    "soft": ("convolutional", STUDENT, ("distillation=soft",)),
    "token": ("convolutional", WITH_TOKEN, ("distillation=hard",)),
    "token, transformer": ("transformer", WITH_TOKEN, ("distillation=hard",)),
}
NUM_IMAGES = 10_000


def main() -> None:
    """Run what is missing and write one JSON document."""
    parser = new_parser(minutes=6.0)
    parser.add_argument("--teacher-minutes", type=float, default=15.0)
    parser.add_argument("--draws", type=int, default=0, help="augmentations of each image for students with a teacher")
    args = parser.parse_args()
    seeds = range(args.seeds)
    facts = {"minutes": args.minutes, "teacher_minutes": args.teacher_minutes, "images": NUM_IMAGES}
    results = Results(args.out, {**facts, "draws": args.draws})
    data = str(write_part(args.data, args.work, NUM_IMAGES, 0)[0])

    def words(name: str, recipe: str, minutes: float, *more: str) -> list[list[str]]:
        start = ["train", data, "--recipe", recipe, "--minutes", str(minutes), "--run", str(place(name))]
        return [[*start, *COMMON, *more]]

    def place(name: str) -> Path:
        return args.work / name / "model"

    first = {
        f"teacher-{name}": words(f"teacher-{name}", "scratch", args.teacher_minutes, *options)
        for name, options in TEACHERS.items()
    }
    taught = {}
    for seed in seeds:
        for name, (teacher, model, settings) in STUDENTS.items():
            common = ("--seed", str(seed), "--model", model, *settings)
            key = f"{name}-{seed}"
            if teacher is None:
                first[key] = words(key, "scratch", args.minutes, *common)
            else:
                path = str(place(f"teacher-{teacher}"))
                draws = f"augment.draws={args.draws}"
                taught[key] = words(key, "distill", args.minutes, *common, "--teacher", path, draws)
    check_unfinished_seeds([f"{name}-{seed}" for name in STUDENTS for seed in seeds], results, restart=args.restart)
    if any(key not in results.rows for key in taught):
        for name in TEACHERS:  # of an earlier session, whose runs are gone
            if not place(f"teacher-{name}").is_dir():
                results.rows.pop(f"teacher-{name}", None)
    run_all(first, results)
    rows = run_all(taught, results)
    rows |= {key: results.rows[key] for key in first}
    results.write(
        {
            **{name: rows[name]["accuracy"] for name in rows if name.startswith("teacher-")},
            **{name: mean_and_interval([rows[f"{name}-{seed}"]["accuracy"] for seed in seeds]) for name in STUDENTS},
        }
    )


if __name__ == "__main__":
    main()
