"""DeiT on 10,000 images of CIFAR-10: a plain Vision Transformer with and without a teacher, at equal time.

    python benchmarks/distill.py cifar10.npz --work DIR --minutes 10 --out benchmarks/distill.json

Two teachers are trained on the same images first: a ResNet and a Vision Transformer with a convolutional stem. A pass
of either costs about as much as one of the student.
The students are plain: without a teacher, with hard and soft labels from the ResNet, with a distillation token, and
with the transformer as their teacher. Every run has one core, its minutes are processor minutes, and the teacher's
passes count as the student's time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from side_by_side import COMMON, Results, mean_and_interval, new_parser, run_all, write_part

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
    parser = new_parser(minutes=10.0)
    parser.add_argument("--teacher-minutes", type=float, default=15.0)
    args = parser.parse_args()
    work, seeds = args.work, range(args.seeds)
    facts = {"minutes": args.minutes, "teacher_minutes": args.teacher_minutes, "images": NUM_IMAGES}
    results = Results(args.out, facts)
    for seed in seeds:
        run_seed(seed, str(write_part(args.data, work, NUM_IMAGES, seed)[0]), args, results)
    names = [*(f"teacher-{name}" for name in TEACHERS), *STUDENTS]
    results.write(
        {name: mean_and_interval([results.rows[f"{name}-{seed}"]["accuracy"] for seed in seeds]) for name in names}
    )


def run_seed(seed: int, data: str, args: argparse.Namespace, results: Results) -> None:
    """Train the teachers, then the students; teachers that are no longer there are trained again for a student."""

    def words(name: str, recipe: str, minutes: float, *more: str) -> list[str]:
        start = ["train", data, "--recipe", recipe, "--minutes", str(minutes), "--run", str(place(name))]
        return [*start, "--seed", str(seed), *COMMON, *more]

    def place(name: str) -> Path:
        return args.work / f"{name}-{seed}" / "model"

    students = {}
    for name, (teacher, model, settings) in STUDENTS.items():
        taught = [] if teacher is None else ["--teacher", str(place(f"teacher-{teacher}"))]
        recipe = "scratch" if teacher is None else "distill"
        students[f"{name}-{seed}"] = [words(name, recipe, args.minutes, "--model", model, *taught, *settings)]
    if all(name in results.rows for name in students):
        return
    for name in TEACHERS:
        if not place(f"teacher-{name}").is_dir():
            results.rows.pop(f"teacher-{name}-{seed}", None)
    teachers = {
        f"teacher-{name}-{seed}": [words(f"teacher-{name}", "scratch", args.teacher_minutes, *options)]
        for name, options in TEACHERS.items()
    }
    run_all(teachers, results)
    run_all(students, results)


if __name__ == "__main__":
    main()
