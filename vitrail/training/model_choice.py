"""Resolution and size of the model for the time that a run has, from its measured speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from vitrail.tokens import format_size
from vitrail.training.task import Task
from vitrail.training.throughput import smaller

FEWEST = 2.0  # epochs that a run should have, be it of smaller pictures
SMALLEST = 0.5  # of the model's own side
OFTEN = 20.0  # epochs from which a larger model learns more in the same time


def affordable(task: Task) -> Task:
    """The task with models of the largest resolution, up to their own, at which the time lasts for a few epochs."""
    left = task.seconds_left()
    if left is None or not task.free:
        return task

    def choose() -> list[int]:
        model = task.new_model(num_classes=len(task.sets.classes))
        epochs = left * task.speed_of(model) / len(task.sets.train)
        own, size = model.spec.image_size, smaller(model.spec, min(1.0, max(SMALLEST, math.sqrt(epochs / FEWEST))))
        if size != own:
            task.view.say(
                f"Pictures of {format_size(size)} pixels instead of {format_size(own)}, for the time that there is."
            )
        return list(size)

    size = tuple(task.decide("image_size", choose))
    return replace(task, new_model=partial(task.new_model, image_size=size))


def largest(task: Task, names: Sequence[str]) -> Task:
    """The task with the last of these models, each slower than the one before, that the time lets learn for long."""
    left = task.seconds_left()
    if left is None or not task.free:
        return task

    def choose() -> str:
        fits = names[0]
        for name in names[1:]:
            speed = task.speed_of(task.new_model(name=name, num_classes=len(task.sets.classes)))
            if left * speed < OFTEN * len(task.sets.train):
                break
            fits = name
        return fits

    name = task.decide("model", choose)
    task.view.say(f"The model for these pictures and this time: {name}.")
    return replace(task, new_model=partial(task.new_model, name=name))
