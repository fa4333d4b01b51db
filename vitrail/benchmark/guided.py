"""Experiments in which a model learns not from labels alone: from a teacher, or first from images without labels."""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from vitrail.benchmark.experiment import (
    BATCH_SIZE,
    FORWARD_AND_BACKWARD,
    SETTINGS,
    Laboratory,
    TrainingRun,
    write_images,
)
from vitrail.benchmark.verdict import Row


@dataclass(frozen=True)
class Distilled:
    """A student with a teacher, which is trained first on the same images (DeiT, arXiv 2012.12877).

    The teacher's pass for every image that the student sees counts as the student's compute; its training does not.
    """

    student: TrainingRun
    teacher: TrainingRun

    @property
    def key(self) -> str:
        """Everything that determines the result."""
        return f"{self.student.key} teacher=({self.teacher.key})"

    @property
    def cost(self) -> float:
        """The teraflops of both trainings."""
        return self.teacher.cost + self._num_steps() * BATCH_SIZE * self._flops() / 1e12

    def _flops(self) -> float:
        """What it takes to learn from an image once."""
        return FORWARD_AND_BACKWARD * self.student.network().flops() + self.teacher.network().flops()

    def _num_steps(self) -> int:
        return self.student.num_steps(self._flops())

    def run(self, lab: Laboratory) -> Row:
        """Train the teacher, then the student."""
        began, place = time.process_time(), _place(lab, self.key)
        steps = self.teacher.num_steps(FORWARD_AND_BACKWARD * self.teacher.network().flops())
        taught = self.teacher.fit(lab, place / "teacher", steps=steps)
        row = self.student.fit(lab, place / "student", steps=self._num_steps(), teacher=place / "teacher")
        shutil.rmtree(place)
        seconds = round(time.process_time() - began, 1)
        return {**row, "teacher_accuracy": taught["accuracy"], "processor_seconds": seconds}


@dataclass(frozen=True)
class Pretrained:
    """A model that first predicts hidden patches of images without labels, and then learns from labels."""

    training: TrainingRun
    target: str
    num_images: int
    """Without labels; those with labels are among them."""
    num_seen: int
    """Of these, repeated ones counted."""

    @property
    def key(self) -> str:
        """Everything that determines the result."""
        return f"{self.training.key} pretrained={self.target} images={self.num_images} seen={self.num_seen}"

    @property
    def cost(self) -> float:
        """The teraflops of both trainings."""
        flops = FORWARD_AND_BACKWARD * self.training.network().flops()
        return self.training.cost + flops * self.num_seen / 1e12

    def run(self, lab: Laboratory) -> Row:
        """Pretrain, then train with labels."""
        began, place, after = time.process_time(), _place(lab, self.key), self.training
        steps = max(1, round(self.num_seen / BATCH_SIZE))
        lab.train(
            write_images(lab, self.num_images, after.seed),
            model=after.model,
            recipe="pretrain",
            run=place / "pretrained",
            settings=[
                *(f"model.{change}" for change in after.changes),
                *SETTINGS,
                f"target={self.target}",
                f"steps={steps}",
                f"eval_every={steps}",
            ],
            seed=after.seed,
            report=False,
        )
        num_steps = after.num_steps(FORWARD_AND_BACKWARD * after.network().flops())
        row = after.fit(lab, place / "model", steps=num_steps, weights=place / "pretrained")
        shutil.rmtree(place)
        return {**row, "processor_seconds": round(time.process_time() - began, 1)}


def _place(lab: Laboratory, key: str) -> Path:
    """The folder of an experiment's runs: its key is too long for a file name."""
    return lab.work / "runs" / hashlib.sha256(key.encode()).hexdigest()[:16]
