"""The settings that recipes for images share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.data.augment import Augment
from vitrail.spec import FinitePositive, PartialFraction
from vitrail.training.optim import OptimizerName
from vitrail.training.settings import Settings


class ImageSettings(Settings):
    """The loop's settings, and those of augmentation and labels."""

    label_smoothing: PartialFraction = 0.0
    augment: Augment = Augment()


class ScratchSettings(ImageSettings):
    """The defaults for training from scratch."""

    batch_size: int = Field(128, gt=0)
    optimizer: OptimizerName = "muon"
    lr: FinitePositive = 0.02
    weight_decay: float = Field(0.05, ge=0.0)
    warmup: PartialFraction = 0.05
    ema: PartialFraction = 0.99
    label_smoothing: PartialFraction = 0.1
    augment: Augment = Augment(crop="padded")
    augment_strength: Literal["auto", "light", "medium", "strong"] = "auto"
    """`light` changes nothing about `augment`, `medium` adds RandAugment, `strong` random erasing and CutMix too;
    `auto` chooses by how often the run will see each image."""
    small_until: PartialFraction = 0.6


class FinetuneSettings(ImageSettings):
    """The defaults for fine-tuning on small data sets."""

    batch_size: int = Field(64, gt=0)
    lr: FinitePositive = 3e-4
    weight_decay: float = Field(0.05, ge=0.0)
    layer_decay: float = Field(0.75, gt=0.0, le=1.0)
    warmup: PartialFraction = 0.1
    ema: PartialFraction = 0.99
    label_smoothing: PartialFraction = 0.1
    augment: Augment = Augment(scale=(0.35, 1.0), jitter=0.2, mixup=0.2)
