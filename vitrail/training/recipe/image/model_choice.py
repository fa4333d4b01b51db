"""Choose model and image size for the time that a run has, from measured speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from vitrail.contract import Model, Objective
from vitrail.data.table import IMAGE
from vitrail.data.transform import scale_size
from vitrail.tokens import format_size
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.settings import Settings
from vitrail.training.task import Task

MIN_EPOCHS = 2.0  # of fine-tuning, if necessary on smaller images
MIN_SCALE = 0.5  # of the model's image size


class Candidate(NamedTuple):
    """A model, and the number of epochs it needs to beat the smaller candidate before it."""

    name: str
    epochs: float


NewObjective = Callable[[Task, Model], Objective]
"""Creates what a model is trained with, if the recipe brings its own, so that its cost counts."""


def forecast_epochs(task: Task, model: Model, new_objective: NewObjective | None = None) -> float:
    """How often this model can see all training images in the length of the run, by measured speed if in minutes."""
    settings, num, left = task.settings, len(task.splits.train), task.seconds_left()
    assert isinstance(settings, Settings)
    if left is not None:
        return left * _measure_speed(task, model, new_objective) / num
    if settings.epochs is not None:
        return settings.epochs
    return (settings.steps or 0) * min(settings.batch_size, num) / num


def _measure_speed(task: Task, model: Model, new_objective: NewObjective | None) -> float:
    return task.measure_speed(model) if new_objective is None else task.measure_speed(model, new_objective(task, model))


def choose_image_size(task: Task, new_objective: NewObjective | None = None) -> Task:
    """Return the task with the largest image size, up to the model's own, that leaves time for a few epochs.

    Clips keep the size of the model.
    """
    if task.seconds_left() is None or not task.can_choose_model or task.splits.train.modalities != IMAGE:
        return task

    def choose() -> list[int]:
        model = as_classifier(task.new_model(num_classes=task.splits.train.num_outputs))
        epochs = forecast_epochs(task, model, new_objective)
        full_size = model.spec.image_size
        size = scale_size(full_size, model.spec.layout.grid, min(1.0, max(MIN_SCALE, math.sqrt(epochs / MIN_EPOCHS))))
        if size != full_size:
            task.view.say(
                f"Using images of {format_size(size)} pixels instead of {format_size(full_size)}, to fit the time."
            )
        return list(size)

    size = tuple(task.decide("image_size", choose))
    return replace(task, new_model=partial(task.new_model, image_size=size))


def choose_model(task: Task, candidates: Sequence[Candidate], new_objective: NewObjective | None = None) -> Task:
    """Return the task with the last candidate that can train long enough; each is slower than the one before."""
    left = task.seconds_left()
    if left is None or not task.can_choose_model:
        return task

    def choose() -> str:
        name = candidates[0].name
        for candidate in candidates[1:]:
            model = task.new_model(name=candidate.name, num_classes=task.splits.train.num_outputs)
            if left * _measure_speed(task, model, new_objective) < candidate.epochs * len(task.splits.train):
                break
            name = candidate.name
        return name

    name = task.decide("model", choose)
    task.view.say(f"Model for this data and this time: {name}.")
    return replace(task, new_model=partial(task.new_model, name=name))
