"""BLEU and chrF of translations, by sacrebleu, with bootstrap intervals.

Scores of different tokenisations and cases cannot be compared: each has sacrebleu's signature (arXiv 1804.08771).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.metric.interval import Interval

NUM_RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class TranslationScore:
    """The scores of a list of translations."""

    bleu: float
    interval: Interval
    """The 95 % interval of BLEU."""
    signature: str
    bleu_lowercase: float
    """BLEU without regard to case, as the literature on Multi30k has it."""
    signature_lowercase: str
    chrf: float
    n: int


def score_translations(translations: Sequence[str], references: Sequence[str]) -> TranslationScore:
    """Score translations against one reference each."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    usual, lowercase, chrf = BLEU(), BLEU(lowercase=True), CHRF()
    score: Any = usual.corpus_score(translations, [references], n_bootstrap=NUM_RESAMPLES)
    mean, margin = score._mean, score._ci  # noqa: SLF001 - there is no public way to the interval
    lower = lowercase.corpus_score(translations, [references])
    return TranslationScore(
        bleu=score.score,
        interval=(float(mean - margin), float(mean + margin)),
        signature=str(usual.get_signature()),
        bleu_lowercase=lower.score,
        signature_lowercase=str(lowercase.get_signature()),
        chrf=chrf.corpus_score(translations, [references]).score,
        n=len(translations),
    )


def sentence_scores(translations: Sequence[str], references: Sequence[str]) -> list[float]:
    """The chrF of each sentence: BLEU says little about single ones."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    return [
        metric.sentence_score(each, [reference]).score for each, reference in zip(translations, references, strict=True)
    ]
