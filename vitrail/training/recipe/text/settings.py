"""The settings that all recipes for text share."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from vitrail.data.text.tokenizer import TokenizerKind
from vitrail.errors import SpecError
from vitrail.spec import FinitePositive, PartialFraction
from vitrail.training.optim import OptimizerName
from vitrail.training.settings import Settings


class TextSettings(Settings):
    """The loop's settings, and those of tokens."""

    batch_size: int = Field(128, gt=0)
    optimizer: OptimizerName = "muon"
    lr: FinitePositive = 0.02
    weight_decay: float = Field(0.05, ge=0.0)
    warmup: PartialFraction = 0.05
    ema: PartialFraction = 0.99
    compile: Literal["auto", "on", "off"] = "off"
    """Sentences have different lengths, and each length would be compiled."""
    tokenizer: TokenizerKind = "subwords"
    """What a token is; cl100k is GPT-4's vocabulary."""
    vocab: PositiveInt | None = None
    """The number of tokens to learn, at most; None for 4,096 sub-words or 10,000 words."""
    lowercase: bool = False
    context: int = Field(128, ge=2, le=8192)
    """The number of tokens that the model sees at once."""


class CorpusSettings(TextSettings):
    """Those of recipes that learn from plain text."""

    column: str | None = None
    """The column of a CSV file; None for `text`."""


class TranslationSettings(TextSettings):
    """Those of recipes that learn to translate."""

    source: str = "en"
    """The language to translate from: the suffix of its files, or the name of a column."""
    target: str = "de"
    """The language to translate to, or several with commas between them."""
    label_smoothing: PartialFraction = 0.0
    beam: int = Field(5, ge=1, le=100)
    """Beginnings kept in the search that validates and tests the model."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The languages to translate to."""
        return tuple(each.strip() for each in self.target.split(","))

    @model_validator(mode="after")
    def _check_languages(self) -> Self:
        names = (self.source, *self.targets)
        if len(set(names)) < len(names) or not all(re.fullmatch(r"[\w-]{1,32}", name) for name in names):
            raise SpecError(
                "source and target are different languages.",
                got=f"source={self.source!r}, target={self.target!r}.",
                hint="source=en target=de, or target=de,fr.",
            )
        return self
