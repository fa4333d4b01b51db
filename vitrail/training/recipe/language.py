"""A language model from scratch: the next character, sub-word or word of your text.

    vitrail train input.txt --recipe language --minutes 10

Tinyshakespeare, characters, two cores: 1.498 nats per character on the last tenth after 10 minutes (three seeds, 1.493
to 1.502), where nanoGPT's settings for a CPU reach 1.90 in their 2,000 steps and 1.54 to 1.57 in the same time; nanoGPT
reports 1.47 with 10.7 million parameters on a GPU (benchmarks/language-10.json).

The ingredients: Muon, rotary positions, a shorter context at the start, an EMA of the weights.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.data.text.tokenizer import TokenizerKind
from vitrail.spec import PartialFraction, PositiveFraction
from vitrail.training.recipe.text.models import Size, train_text_model
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
    warmup: PartialFraction = 0.02
    small_side: PositiveFraction = 0.5
    small_until: PartialFraction = 0.6
    compile: Literal["auto", "on", "off"] = "auto"


def train(task: Task) -> Outcome:
    """Train a model of a size that suits the time."""
    return train_text_model(task, SIZES)
