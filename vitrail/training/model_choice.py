"""Model and resolution for the time that a run has, from measured speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from vitrail.tokens import format_size
from vitrail.training.task import Task
from vitrail.training.throughput import smaller

FEWEST = 2.0  # epochs that fine-tuning should have, if need be on smaller images
SMALLEST = 0.5  # of the model's own side


class Rung(NamedTuple):
    """A model, and the epochs below which the one before it learns more in the same time."""

    name: str
    epochs: float


def affordable(task: Task) -> Task:
    """The task with models of the highest resolution, up to their own, at which the time lasts for a few epochs."""
    left = task.seconds_left()
    if left is None or not task.free:
        return task

    def choose() -> list[int]:
        model = task.new_model(num_classes=len(task.sets.classes))
        epochs = left * task.speed_of(model) / len(task.sets.train)
        own, size = model.spec.image_size, smaller(model.spec, min(1.0, max(SMALLEST, math.sqrt(epochs / FEWEST))))
        if size != own:
            task.view.say(f"Images of {format_size(size)} pixels instead of {format_size(own)}, to fit the time.")
        return list(size)

    size = tuple(task.decide("image_size", choose))
    return replace(task, new_model=partial(task.new_model, image_size=size))


def climb(task: Task, ladder: Sequence[Rung]) -> Task:
    """The task with the last of these models, each slower than the one before, that the time lets train long enough."""
    left = task.seconds_left()
    if left is None or not task.free:
        return task

    def choose() -> str:
        name = ladder[0].name
        for rung in ladder[1:]:
            speed = task.speed_of(task.new_model(name=rung.name, num_classes=len(task.sets.classes)))
            if left * speed < rung.epochs * len(task.sets.train):
                break
            name = rung.name
        return name

    name = task.decide("model", choose)
    task.view.say(f"Model for these images and this time: {name}.")
    return replace(task, new_model=partial(task.new_model, name=name))
