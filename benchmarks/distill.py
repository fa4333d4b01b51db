"""DeiT on 10,000 images of CIFAR-10: a plain Vision Transformer with and without a teacher, at equal time.

    python benchmarks/distill.py cifar10.npz --work DIR --minutes 10 > benchmarks/distill.json

Two teachers are trained on the same images first: a ResNet (BiT) and a Vision Transformer with a convolutional stem.
The students are plain: without a teacher, with hard and soft labels from the ResNet, with a distillation token, and
with the transformer as their teacher. Every run has one core; the teacher's passes count as the student's time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from side_by_side import COMMON, mean_and_interval, run_all, write_part

TEACHERS = {
    "convolutional": ["--model", "resnetv2_50x1_bit", "model.layers=[1,1,1,1]", "model.image_size=64"],
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
    """Run the benchmark and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--teacher-minutes", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    from vitrail.benchmark.compare import hardware

    work, seeds = args.work, range(args.seeds)
    data = {seed: str(write_part(args.data, work, NUM_IMAGES, seed)[0]) for seed in seeds}

    def words(seed: int, recipe: str, minutes: float, run: Path, *more: str) -> list[str]:
        start = ["train", data[seed], "--recipe", recipe, "--minutes", str(minutes), "--run", str(run)]
        return [*start, "--seed", str(seed), *COMMON, *more]

    teachers = run_all(
        {
            f"teacher-{name}-{seed}": [
                words(seed, "scratch", args.teacher_minutes, work / f"teacher-{name}-{seed}" / "model", *options)
            ]
            for seed in seeds
            for name, options in TEACHERS.items()
        },
        work,
    )
    jobs = {}
    for seed in seeds:
        for name, (teacher, model, settings) in STUDENTS.items():
            run = work / f"{name}-{seed}" / "model"
            taught = [] if teacher is None else ["--teacher", str(work / f"teacher-{teacher}-{seed}" / "model")]
            recipe = "scratch" if teacher is None else "distill"
            jobs[f"{name}-{seed}"] = [words(seed, recipe, args.minutes, run, "--model", model, *taught, *settings)]
    rows = run_all(jobs, work)
    summary = {
        name: mean_and_interval([found[f"{name}-{seed}"]["accuracy"] for seed in seeds])
        for found, names in ((teachers, [f"teacher-{name}" for name in TEACHERS]), (rows, list(STUDENTS)))
        for name in names
    }
    document = {"minutes": args.minutes, "images": NUM_IMAGES, "hardware": hardware(), "summary": summary}
    print(json.dumps({**document, "rows": {**teachers, **rows}}, indent=1))


if __name__ == "__main__":
    main()
