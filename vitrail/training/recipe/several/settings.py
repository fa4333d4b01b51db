"""The settings of recipes that align modalities."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.data.augment import Augment
from vitrail.data.text.tokenizer import TokenizerKind
from vitrail.spec import FinitePositive, PartialFraction
from vitrail.training.optim import OptimizerName
from vitrail.training.settings import Settings


class AlignSettings(Settings):
    """The loop's settings, and those of texts, with defaults for towers that start from nothing."""

    batch_size: int = Field(128, gt=1)
    """Each sample is compared with all others of its batch."""
    optimizer: OptimizerName = "muon"
    lr: FinitePositive = 0.01
    warmup: PartialFraction = 0.05
    ema: PartialFraction = 0.99
    temperature: FinitePositive = 0.07
    """Similarities are divided by it; a lower one looks at near misses more closely."""
    tokenizer: TokenizerKind = "subwords"
    vocab: int | None = Field(None, gt=0)
    """Tokens of the vocabulary; None for the tokenizer's default."""
    context: int = Field(32, ge=1, le=2048)
    """Tokens of a text that count."""
    augment: Augment = Augment(crop="padded", flip_rate=0.0)
    """Of images; they are not mirrored by default, because texts may speak of left and right."""
    locked: Literal["image", "none"] = "none"
    """A tower whose weights stay as they are (LiT, arXiv 2111.07991); `image` needs --weights."""


class WeightsSettings(AlignSettings):
    """The defaults for an image tower that starts from weights."""

    optimizer: OptimizerName = "adamw"
    lr: FinitePositive = 3e-4
    batch_size: int = Field(64, gt=1)
    augment: Augment = Augment(scale=(0.35, 1.0), jitter=0.2)
