"""The settings that all recipes for text share."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from vitrail.data.text.tokenizer import TokenizerKind
from vitrail.training.settings import Settings


class TextSettings(Settings):
    """The loop's settings, and those of tokens."""

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
