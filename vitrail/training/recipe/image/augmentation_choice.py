"""Stronger augmentation for runs that see each image often, by measured speed.

Ten minutes show each of 500 images a thousand times, and a model learns them by heart unless they look different each
time. With fewer epochs, the same changes are in the way of learning (benchmarks/augmentation.json).
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

LIGHT, MEDIUM, STRONG = "light", "medium", "strong"
CHANGES: dict[str, dict[str, Any]] = {
    LIGHT: {},
    MEDIUM: {"policy": "rand", "magnitude": 5.0},
    STRONG: {"policy": "rand", "magnitude": 5.0, "erase_rate": 0.25, "cutmix": 1.0},
}
MIN_EPOCHS = {STRONG: 200.0, MEDIUM: 30.0}
CHANNELS = (1, 3)  # of the images that RandAugment can change
MIN_SIDE = 16  # with 8 it costs digits 1.7 points (97.8 instead of 99.4 %)


def choose_augmentation(task: Task, model: Model, new_objective: NewObjective | None = None) -> Task:
    """Return the task with the augmentation that suits its length; what the user changed stays as it is."""
    settings, train = task.settings, task.splits.train
    if not isinstance(settings, ScratchSettings) or train.modalities != IMAGE or train.values is not None:
        return task

    def choose() -> str:
        if "plan" in task.decisions:  # of an earlier version
            return LIGHT
        epochs = forecast_epochs(task, model, new_objective)
        return next((strength for strength, least in MIN_EPOCHS.items() if epochs >= least), LIGHT)

    strength: str = settings.augment_strength
    if strength == "auto":
        preprocess = as_classifier(model).preprocess
        suits = preprocess.channels in CHANNELS and min(preprocess.size) >= MIN_SIDE
        strength = task.decide("augment_strength", choose) if suits else LIGHT
        if strength != LIGHT:
            task.view.say(f"Augmentation: {strength}, because the run is long enough to see each image often.")
    usual, augment = type(settings)().augment, settings.augment
    changes = {key: value for key, value in CHANGES[strength].items() if getattr(augment, key) == getattr(usual, key)}
    if augment.draws:
        changes.pop("cutmix", None)  # pairs change from epoch to epoch
    return replace(task, settings=settings.override({"augment": augment.override(changes)}))
