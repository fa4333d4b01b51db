"""A masked language model from scratch: the hidden words of each line of your text (BERT, arXiv 1810.04805).

    vitrail train captions.txt --recipe masked_language --minutes 10

Multi30k's English captions, one of two cores without AVX-512, 20 minutes: 49.8 % of the masked words of test sentences
(three seeds, 49.5 to 50.0 %), where counting words between the same neighbours reaches 42.2 % (masked-words-20.json).
"""

from __future__ import annotations

from vitrail.data.text.tokenizer import TokenizerKind
from vitrail.training.recipe.text.models import Size, train_text_model
from vitrail.training.recipe.text.settings import CorpusSettings
from vitrail.training.task import Outcome, Task

KIND = "masked_language"
SIZES = (Size(0.0, {"width": 192, "depth": 4, "heads": 3, "hidden": 768, "dropout_rate": 0.1}),)


class Spec(CorpusSettings):
    """The loop's settings, with defaults for masked language models."""

    tokenizer: TokenizerKind = "words"
    lowercase: bool = True


def train(task: Task) -> Outcome:
    """Train a masked language model."""
    return train_text_model(task, SIZES)
