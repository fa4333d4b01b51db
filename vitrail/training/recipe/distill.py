"""Distillation: a student learns from labels and from a teacher (DeiT, arXiv 2012.12877).

    vitrail train photos --recipe distill --teacher runs/large --minutes 10

The teacher is anything that Vitrail opens: a run, an exported model, a weight file. It must know the same classes, by
name; it sees the same augmented images, in its own size and normalisation. `distillation=hard` takes its prediction as
a second label, `soft` its probabilities at a `temperature`. A model with a distillation token
(`--model deit_tiny_distilled_patch16_224`) learns from the teacher with that token. With `augment.draws=4` each image
has four augmentations, over and over, and the teacher's answers to them are kept.

CIFAR-10 with 5,000 labels, `deit_nano_distilled_patch4_32`, a teacher of 65.2 %, two cores: 48.8 % in 2 minutes (one
seed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vitrail.contract import Model
from vitrail.data.table import Source
from vitrail.errors import DataError
from vitrail.objective.distill import Distill, Distillation
from vitrail.spec import FinitePositive, PositiveFraction
from vitrail.training.recipe.image.candidates import list_candidates
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.model_choice import choose_image_size, choose_model
from vitrail.training.recipe.image.settings import FinetuneSettings, ImageSettings, ScratchSettings
from vitrail.training.recipe.image.teacher import Teacher
from vitrail.training.recipe.image.teacher_answers import RememberedTeacher
from vitrail.training.task import Outcome, Task

NEEDS_TEACHER = True


class DistillSettings(ImageSettings):
    """How the student learns from the teacher."""

    distillation: Distillation = "hard"
    teacher_weight: PositiveFraction = 0.5
    """The teacher's share of the loss."""
    temperature: FinitePositive = 3.0
    """Of both predictions, if soft."""


class Spec(ScratchSettings, DistillSettings):
    """The settings of a student that is trained from scratch."""


class TuningSpec(FinetuneSettings, DistillSettings):
    """The settings of a student that starts from weights."""


def spec(*, has_weights: bool) -> Any:
    """The settings, by what the student starts from."""
    return TuningSpec if has_weights else Spec


def check_request(_: object, new_model: Callable[..., Model], source: Source, teacher: Any) -> None:
    """Refuse a teacher of other classes or other images."""
    if source.classes:
        Teacher(teacher, as_classifier(new_model(num_classes=len(source.classes))).preprocess, source.classes)


def train(task: Task) -> Outcome:
    """Train the requested student, or one that suits the images and the time."""
    train_split = task.splits.train
    if train_split.multi_label or train_split.values is not None:
        raise DataError("distillation needs one label per image.", got="other data.", hint="the recipe scratch.")
    task = choose_image_size(task) if task.has_weights else choose_model(task, list_candidates(train_split))
    model = as_classifier(task.kind.new_model(task))
    objective = new_objective(task, model)
    remembered = _remember(task, objective) if _settings(task).augment.draws else None
    progress = task.fit(model, objective)
    if remembered is not None:
        remembered.delete()
    val = task.infer(model, task.splits.val, "Validating")
    note = f"Distilled from a teacher ({_settings(task).distillation}) for {progress.step:,} steps."
    return Outcome(model, val, progress.step, (note,))


def _remember(task: Task, objective: Distill) -> RememberedTeacher:
    """Keep the teacher's answers to each image and augmentation, in the loop; timed steps ask it every time."""
    objective.teacher = RememberedTeacher(
        objective.teacher,
        task.folder / f"teacher-{task.world.rank}.answers",
        num_classes=len(task.splits.train.classes),
        limit_gb=task.settings.cache_gb,
        ready=lambda: "plan" in task.decisions,
    )
    return objective.teacher


def new_objective(task: Task, model: Model) -> Distill:
    """Create the loss against labels and teacher, for this student."""
    settings = _settings(task)
    return Distill(
        task.kind.new_objective(task),
        Teacher(task.teacher, as_classifier(model).preprocess, task.splits.train.classes),
        distillation=settings.distillation,
        weight=settings.teacher_weight,
        temperature=settings.temperature,
    )


def _settings(task: Task) -> DistillSettings:
    assert isinstance(task.settings, DistillSettings)
    return task.settings
