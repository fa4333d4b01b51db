"""A translator from scratch, from aligned sentences (Vaswani et al., arXiv 1706.03762), several languages in one model.

    vitrail train multi30k --recipe translate source=en target=de,fr --minutes 40

Multi30k, two cores: BLEU 37.9 to German and 56.4 to French on test_2016_flickr after 40 minutes, five epochs (one seed,
benchmarks/translation-40.json), detokenised and with case.
"""

from __future__ import annotations

from vitrail.spec import PartialFraction
from vitrail.training.recipe.text.models import Size, train_text_model
from vitrail.training.recipe.text.settings import TranslationSettings
from vitrail.training.task import Outcome, Task

KIND = "translation"
SIZES = (
    Size(0.0, {"width": 192, "depth": 3, "decoder_depth": 3, "heads": 3, "hidden": 768, "dropout_rate": 0.1}),
    Size(8.0, {"width": 256, "depth": 4, "decoder_depth": 4, "heads": 4, "hidden": 1024, "dropout_rate": 0.2}),
)


class Spec(TranslationSettings):
    """The loop's settings, with defaults for translation."""

    label_smoothing: PartialFraction = 0.1


def train(task: Task) -> Outcome:
    """Train a translator of a size that suits the time."""
    return train_text_model(task, SIZES)
