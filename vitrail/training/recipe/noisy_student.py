"""Noisy Student: a teacher labels images without labels, and a student learns from both (arXiv 1911.04252).

    vitrail train few --recipe noisy_student --unlabelled photos --minutes 20

A teacher is trained on the labelled images; with `--weights` it is a linear probe, or fine-tuned (`teacher=finetuned`).
Its confident predictions for the others (`confidence`, calibrated on validation images; equally many of each class)
become labels, soft or hard. A student learns from all of them, with stronger augmentation and stochastic depth as
noise; it labels the images again for the next of `generations`. It starts from its teacher's weights, unless it is
another, usually larger model (`student_model`) or trained from scratch (`warm_start=false`, as in most of the paper,
which has time for many epochs). Each generation is kept only if it is significantly better.

CIFAR-10 with 500 labels, `vit_nano_conv4_32`, 10 minutes of one of two cores, one seed: 56.1 %, without unlabelled
images 52.7 (benchmarks/few-labels-10.json).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import PositiveInt, field_validator

from vitrail import catalogue, plug
from vitrail.contract import Classifier, Model
from vitrail.data.augment import Augment
from vitrail.data.join import join_tables
from vitrail.data.table import Source, Table
from vitrail.errors import SpecError, VitrailError
from vitrail.percent import percent
from vitrail.spec import FinitePositive, OpenFraction, PartialFraction
from vitrail.training.evaluation import Z_ONE_SIDED_95, describe_gain, paired_gain
from vitrail.training.recipe.image.augmentation_choice import choose_augmentation
from vitrail.training.recipe.image.candidates import list_candidates
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.model_choice import choose_image_size, choose_model
from vitrail.training.recipe.image.pseudo import check_tables, label_images, without_labels
from vitrail.training.recipe.image.settings import FinetuneSettings, ImageSettings, ScratchSettings
from vitrail.training.task import Outcome, Task

RECIPES = "vitrail.training.recipe"
NEEDS_UNLABELLED = True
TEACHER = "teacher"  # its stage
PROBE_SHARE = 0.2  # of the minutes, for a teacher that is a probe


class StudentSettings(ImageSettings):
    """How the student learns."""

    generations: PositiveInt = 1
    confidence: OpenFraction = 0.7
    """The least calibrated confidence of a prediction that becomes a label."""
    soft: bool = True
    """Whether labels are probabilities rather than the most likely class."""
    warm_start: bool = True
    """Whether a student starts from its teacher's weights, if it is the same model."""
    student_model: str | None = None
    """The students' model, if it is not the teacher's: a name of the catalogue."""
    teacher_share: OpenFraction = 0.3
    """The teacher's fraction of the minutes; the students share the rest."""
    student_augment: Augment = Augment(crop="padded", policy="rand", magnitude=5.0, erase_rate=0.25)
    student_drop_path: PartialFraction = 0.1

    @field_validator("student_model")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        if name is not None:
            catalogue.spec_named(name)
        return name


class Spec(ScratchSettings, StudentSettings):
    """The settings of models that are trained from scratch."""


class TuningSpec(FinetuneSettings, StudentSettings):
    """The settings of models that start from weights."""

    student_augment: Augment = Augment(scale=(0.35, 1.0), jitter=0.2, policy="rand", magnitude=5.0)
    lr: FinitePositive = 1e-4
    teacher: Literal["probe", "finetuned"] = "probe"
    """How the teacher is trained; a probe is better on very few labels, if the features are good."""


def spec(*, has_weights: bool) -> Any:
    """The settings, by what the models start from."""
    return TuningSpec if has_weights else Spec


def check_request(settings: Any, new_model: Callable[..., Model], source: Source, _: object) -> None:
    """Refuse a model that students cannot have."""
    name = settings.student_model
    if name is None:
        return
    if isinstance(settings, TuningSpec):
        raise SpecError(
            "students that start from weights have the model of the weights.",
            got=f"student_model={name}.",
            hint="the command without student_model, or without --weights.",
        )
    try:
        takes = new_model(name=name, num_classes=0).TAKES
    except VitrailError as error:
        raise SpecError(
            f"student_model={name} cannot be built: {error.wrong}",
            got=error.got,
            hint="settings of model.* that the teacher's model and the students' both have.",
        ) from None
    if takes != source.modalities:
        raise SpecError(
            f"student_model={name} is not a model of images.", got=f"a model that takes {' and '.join(takes)}."
        )


def train(task: Task) -> Outcome:
    """Train a teacher, then students, as long as they are better."""
    labelled, unlabelled = check_tables(task.splits.train, task.unlabelled)
    settings = _settings(task)
    task, best, probe = _train_teacher(task, labelled, unlabelled)
    objective, steps = task.kind.new_objective(task), best.steps
    notes = [f"Teacher: {objective.score(best.val.fields).text} on validation images."]
    task.view.say(notes[-1])
    for number in range(1, settings.generations + 1):
        model = as_classifier(best.model)
        confidence, soft = settings.confidence, settings.soft
        pseudo = label_images(task, model, best.val, unlabelled, confidence=confidence, soft=soft, number=number)
        if pseudo is None:
            limit = percent(settings.confidence, 0)
            notes.append(
                f"No image was labelled with a confidence of {limit} or more, so there is no student {number}."
            )
            task.view.say(f"{notes[-1]} A lower `confidence` may help.")
            if number == 1 and not is_probe(task):
                best = _train_on(task, model)  # with the rest of the time
                notes.append(f"The teacher was trained further, for {best.steps:,} steps on the labelled images.")
                steps += best.steps
            break
        task.view.say(f"Student {number}: {pseudo.note}.")
        student = _train_student(task, number, join_tables(labelled, pseudo.table), model)
        steps += student.steps
        gain, noise = paired_gain(best.val, student.val, objective)
        before, after = (objective.score(each.val.fields) for each in (best, student))
        kept = gain > Z_ONE_SIDED_95 * noise and not after.worse_than(before)
        change = f"{after.text} against {before.text}; {describe_gain(objective.COMPARES, gain, noise)}"
        notes.append(
            f"Student {number}, {pseudo.note}: {change}, so {'it is kept' if kept else 'the model before it is kept'}."
        )
        task.view.say(notes[-1])
        if not kept:
            break
        best, probe = student, None
    best = best._replace(notes=tuple(notes), steps=steps)
    return best if probe is None else plug.load(RECIPES, "probe").refit(task.stage(TEACHER), probe, best)


def _train_student(task: Task, number: int, images: Table, teacher: Classifier) -> Outcome:
    """Train a student with noise, in its part of the time."""
    settings = _settings(task)
    first = PROBE_SHARE if is_probe(task) else settings.teacher_share
    until = 1.0 if number == settings.generations else first + (1 - first) * number / settings.generations
    stage = make_student_stage(task, images, settings, number=number, until=until)
    model = as_classifier(stage.kind.new_model(stage))
    if settings.warm_start and model.name == teacher.name:
        model.load_state_dict(teacher.state_dict())
    return _fit(stage, model)


def make_student_stage(
    task: Task, images: Table, noise: StudentSettings, *, number: int = 1, until: float = 1.0
) -> Task:
    """The stage in which a student learns from these images, of all classes equally often, with noise."""
    new_model = _student_maker(task, noise)
    if hasattr(new_model(num_classes=0).spec, "drop_path_rate"):  # a ResNet has none
        new_model = partial(new_model, drop_path_rate=noise.student_drop_path)
    return task.stage(
        f"student-{number}",
        until=until,
        splits=task.splits._replace(train=images),
        settings=task.settings.override({"augment": noise.student_augment, "balanced": True}),
        new_model=new_model,
    )


def _student_maker(task: Task, settings: StudentSettings) -> Callable[..., Model]:
    """Creates the students' model."""
    return task.new_model if settings.student_model is None else partial(task.new_model, name=settings.student_model)


def _train_on(task: Task, teacher: Classifier) -> Outcome:
    """Train the teacher on labelled images for the rest of the time."""
    return _fit(task.stage("alone"), teacher.train())


def _fit(stage: Task, model: Classifier) -> Outcome:
    progress = stage.fit(model)
    return Outcome(model, stage.infer(model, stage.splits.val, "Validating"), progress.step, ())


def _settings(task: Task) -> StudentSettings:
    assert isinstance(task.settings, StudentSettings)
    return task.settings


def is_probe(task: Task) -> bool:
    """Whether the teacher is a linear probe."""
    return isinstance(task.settings, TuningSpec) and task.settings.teacher == "probe"


def _train_teacher(task: Task, labelled: Table, unlabelled: Table) -> tuple[Task, Outcome, Any]:
    """Train the teacher; return the task with the chosen model too, and the probe, if the teacher is one."""
    if task.has_weights:
        task = choose_image_size(task)
    if is_probe(task):
        recipe, stage = plug.load(RECIPES, "probe"), task.stage(TEACHER, until=PROBE_SHARE)
        probe = recipe.fit_probe(stage)
        return task, recipe.make_outcome(stage, probe), probe
    if not task.has_weights:
        everything = join_tables(labelled, without_labels(unlabelled, labelled.classes))  # what students see
        chosen = choose_model(replace(task, splits=task.splits._replace(train=everything)), list_candidates(labelled))
        task = replace(task, new_model=chosen.new_model)
    stage = task.stage(TEACHER, until=_settings(task).teacher_share)
    model = as_classifier(stage.kind.new_model(stage))
    return task, _fit(choose_augmentation(stage, model), model), None
