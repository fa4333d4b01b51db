"""A translator from scratch, from aligned sentences (Vaswani et al., arXiv 1706.03762), several languages in one model.

vitrail train multi30k --recipe translate source=en target=de,fr --minutes 40
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.spec import FinitePositive, PartialFraction
from vitrail.training.optim import OptimizerName
from vitrail.training.recipe.text.models import Size, choose_size
from vitrail.training.recipe.text.settings import TranslationSettings
from vitrail.training.task import Outcome, Task

KIND = "translation"
SIZES = (
    Size(0.0, {"width": 128, "depth": 3, "decoder_depth": 3, "heads": 4, "hidden": 512, "dropout_rate": 0.1}),
    Size(10.0, {"width": 192, "depth": 4, "decoder_depth": 4, "heads": 6, "hidden": 768, "dropout_rate": 0.2}),
)


class Spec(TranslationSettings):
    """The loop's settings, with defaults for translation."""

    context: int = Field(128, ge=2, le=8192)
    batch_size: int = Field(128, gt=0)
    optimizer: OptimizerName = "muon"
    lr: FinitePositive = 0.02
    weight_decay: float = Field(0.05, ge=0.0)
    warmup: PartialFraction = 0.05
    ema: PartialFraction = 0.99
    label_smoothing: PartialFraction = 0.1
    compile: Literal["auto", "on", "off"] = "off"
    """Sentences have different lengths, and each length would be compiled."""


def train(task: Task) -> Outcome:
    """Train a model of a size that suits the time."""
    task = choose_size(task, SIZES)
    model = task.kind.new_model(task)
    progress = task.fit(model)
    val = task.infer(model, task.splits.val, "Validating")
    return Outcome(model, val, progress.step, (f"Trained from scratch for {progress.step:,} steps.",))
