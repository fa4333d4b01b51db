"""A language model from scratch: the next character, sub-word or word of your text.

vitrail train input.txt --recipe language --minutes 10
"""

from __future__ import annotations

from pydantic import Field

from vitrail.data.text.tokenizer import TokenizerKind
from vitrail.spec import FinitePositive, PartialFraction, PositiveFraction
from vitrail.training.optim import OptimizerName
from vitrail.training.recipe.text.models import Size, choose_size
from vitrail.training.recipe.text.settings import CorpusSettings
from vitrail.training.task import Outcome, Task

KIND = "language"
SIZES = (
    Size(0.0, {"width": 128, "depth": 4, "heads": 2, "hidden": 512}),
    Size(1.2, {"width": 192, "depth": 6, "heads": 3, "hidden": 768}),
    Size(6.0, {"width": 256, "depth": 6, "heads": 4, "hidden": 1024, "dropout_rate": 0.1}),
)


class Spec(CorpusSettings):
    """The loop's settings, with defaults for language models."""

    tokenizer: TokenizerKind = "characters"
    context: int = Field(256, ge=2, le=8192)
    batch_size: int = Field(32, gt=0)
    optimizer: OptimizerName = "muon"
    lr: FinitePositive = 0.02
    weight_decay: float = Field(0.05, ge=0.0)
    warmup: PartialFraction = 0.02
    ema: PartialFraction = 0.99
    small_side: PositiveFraction = 0.5
    small_until: PartialFraction = 0.6


def train(task: Task) -> Outcome:
    """Train a model of a size that suits the time."""
    task = choose_size(task, SIZES)
    model = task.kind.new_model(task)
    progress = task.fit(model)
    val = task.infer(model, task.splits.val, "Validating")
    return Outcome(model, val, progress.step, (f"Trained from scratch for {progress.step:,} steps.",))
