"""How a recipe's clips become the input of its model."""

from __future__ import annotations

from typing import Any

from vitrail.contract import Model
from vitrail.data.prepare.sound import SoundPreparation, SoundPreprocess
from vitrail.data.prepare.video import VideoPreparation, VideoPreprocess
from vitrail.training.recipe.image.settings import ImageSettings
from vitrail.training.task import Task

ClipPreparation = SoundPreparation | VideoPreparation


def prepare_clips(task: Task, model: Model, *, training: bool) -> ClipPreparation:
    """The model's preprocessing and, for training, random segments of clips, mixed as the recipe says."""
    settings = task.settings
    mixup = settings.augment.mixup if training and isinstance(settings, ImageSettings) else 0.0
    return clip_preparation(model.about.preprocess, training=training, mixup=mixup)


def clip_preparation(preprocess: Any, **options: Any) -> ClipPreparation:
    """The preparation of the modality that a preprocessing is for."""
    if isinstance(preprocess, VideoPreprocess):
        return VideoPreparation(preprocess=preprocess, **options)
    assert isinstance(preprocess, SoundPreprocess)
    return SoundPreparation(preprocess=preprocess, **options)
