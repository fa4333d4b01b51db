"""How a recipe's images become the input of its model."""

from __future__ import annotations

from vitrail.contract import Model
from vitrail.data.prepare.image import ImagePreparation
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.settings import ImageSettings
from vitrail.training.task import Task


def prepare_images(task: Task, model: Model, *, training: bool) -> ImagePreparation:
    """The model's preprocessing and, for training, the recipe's augmentation."""
    settings = task.settings
    augment = settings.augment if training and isinstance(settings, ImageSettings) else None
    return ImagePreparation(preprocess=as_classifier(model).preprocess, augment=augment)
