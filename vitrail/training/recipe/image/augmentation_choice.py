"""Stronger augmentation for runs that see each image very often, by measured speed.

A run of ten minutes sees 500 images a thousand times, and learns them by heart unless they look different each time.
With few epochs, the same changes are in the way of learning (benchmarks/strong-augment.json).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitrail.contract import Model
from vitrail.data.table import IMAGE
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.model_choice import NewObjective, forecast_epochs
from vitrail.training.recipe.image.settings import ScratchSettings
from vitrail.training.task import Task

STRONG: dict[str, Any] = {"policy": "rand", "magnitude": 5.0, "erase_rate": 0.25, "cutmix": 1.0}
MIN_EPOCHS = 60.0  # from which it pays
CHANNELS = (1, 3)  # that RandAugment knows


def choose_augmentation(task: Task, model: Model, new_objective: NewObjective | None = None) -> Task:
    """Return the task with stronger augmentation, if it was requested or pays; what the user changed stays."""
    settings, train = task.settings, task.splits.train
    if not isinstance(settings, ScratchSettings) or train.modalities != IMAGE or train.values is not None:
        return task

    def choose() -> bool:
        if "plan" in task.decisions:  # made by an earlier version
            return False
        return forecast_epochs(task, model, new_objective) >= MIN_EPOCHS

    strong = settings.strong_augment
    if strong is None:
        strong = as_classifier(model).preprocess.channels in CHANNELS and task.decide("strong_augment", choose)
    if not strong:
        return task
    usual, augment = type(settings)().augment, settings.augment
    changes = {key: value for key, value in STRONG.items() if getattr(augment, key) == getattr(usual, key)}
    if augment.draws:
        del changes["cutmix"]  # pairs change from epoch to epoch
    if settings.strong_augment is None:
        task.view.say("Each image is seen very often, so they are augmented more: RandAugment, random erasing, CutMix.")
    return replace(task, settings=settings.override({"augment": augment.override(changes)}))
