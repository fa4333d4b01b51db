"""A masked language model from scratch: the hidden words of each line of your text (BERT, arXiv 1810.04805).

vitrail train train.txt --recipe masked_language --minutes 10
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.data.text.tokenizer import TokenizerKind
from vitrail.spec import FinitePositive, PartialFraction
from vitrail.training.optim import OptimizerName
from vitrail.training.recipe.text.models import Size, choose_size
from vitrail.training.recipe.text.settings import CorpusSettings
from vitrail.training.task import Outcome, Task

KIND = "masked_language"
SIZES = (Size(0.0, {"width": 192, "depth": 4, "heads": 6, "hidden": 768, "dropout_rate": 0.1}),)


class Spec(CorpusSettings):
    """The loop's settings, with defaults for masked language models."""

    tokenizer: TokenizerKind = "words"
    lowercase: bool = True
    context: int = Field(128, ge=2, le=8192)
    batch_size: int = Field(128, gt=0)
    optimizer: OptimizerName = "muon"
    lr: FinitePositive = 0.02
    weight_decay: float = Field(0.05, ge=0.0)
    warmup: PartialFraction = 0.05
    ema: PartialFraction = 0.99
    compile: Literal["auto", "on", "off"] = "off"
    """Lines have different lengths, and each length would be compiled."""


def train(task: Task) -> Outcome:
    """Train a model of a size that suits the time."""
    task = choose_size(task, SIZES)
    model = task.kind.new_model(task)
    progress = task.fit(model)
    val = task.infer(model, task.splits.val, "Validating")
    return Outcome(model, val, progress.step, (f"Trained from scratch for {progress.step:,} steps.",))
