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
from vitrail.objective.distill import Distill, Distillation, TeacherFn
from vitrail.spec import FinitePositive, PositiveFraction
from vitrail.training.recipe.image.augmentation_choice import choose_augmentation
from vitrail.training.recipe.image.cached_teacher import CachedTeacher
from vitrail.training.recipe.image.candidates import list_candidates
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.model_choice import choose_image_size, choose_model
from vitrail.training.recipe.image.settings import FinetuneSettings, ImageSettings, ScratchSettings
from vitrail.training.recipe.image.teacher import Teacher
from vitrail.training.task import Outcome, Task

NEEDS_TEACHER = True
CACHE = "teacher-{}.logits"  # of each rank


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
    if task.has_weights:
        task = choose_image_size(task, new_objective)
    else:
        task = choose_model(task, list_candidates(train_split), new_objective)
    model = as_classifier(task.kind.new_model(task))
    task = choose_augmentation(task, model, new_objective)
    objective = new_objective(task, model)
    cached = _settings(task).augment.draws > 0
    if cached:
        objective.teacher = cache_logits(task, objective.teacher)
    progress = task.fit(model, objective)
    if cached:
        delete_logits(task)
    val = task.infer(model, task.splits.val, "Validating")
    note = f"Distilled from a teacher ({_settings(task).distillation}) for {progress.step:,} steps."
    return Outcome(model, val, progress.step, (note,))


def cache_logits(task: Task, teacher: TeacherFn) -> CachedTeacher:
    """Keep the teacher's logits for each image and augmentation, in the loop; timed steps pass every image."""
    return CachedTeacher(
        teacher,
        task.folder / CACHE.format(task.world.rank),
        num_classes=len(task.splits.train.classes),
        limit_gb=task.settings.cache_gb / task.world.size,
        ready=lambda: "plan" in task.decisions,
    )


def delete_logits(task: Task) -> None:
    """Delete the caches of all ranks, once the student is trained; the run may have been started by more of them."""

    def delete() -> None:
        for path in task.folder.glob(CACHE.format("*")):
            path.unlink()

    task.world.on_rank_zero(delete)


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
