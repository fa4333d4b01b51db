"""BLEU and chrF of translations, by sacrebleu, with bootstrap intervals.

Scores of different tokenisations and cases cannot be compared: each comes with sacrebleu's signature (arXiv 1804.08771).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.metric.interval import Interval

NUM_RESAMPLES = 1000
SEED = 12345  # sacrebleu's own


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
    from sacrebleu.metrics import BLEU, CHRF

    usual, lowercase, chrf = BLEU(), BLEU(lowercase=True), CHRF()
    score = usual.corpus_score(translations, [references])
    lower = lowercase.corpus_score(translations, [references])
    return TranslationScore(
        bleu=score.score,
        interval=_bootstrap(usual, translations, references),
        signature=str(usual.get_signature()),
        bleu_lowercase=lower.score,
        signature_lowercase=str(lowercase.get_signature()),
        chrf=chrf.corpus_score(translations, [references]).score,
        n=len(translations),
    )


def _bootstrap(metric: Any, translations: Sequence[str], references: Sequence[str]) -> Interval:
    """The 95 % interval over resampled sentences, from their statistics (Koehn 2004)."""
    import numpy as np

    statistics = np.array(metric._extract_corpus_statistics(translations, [references]))  # noqa: SLF001
    rng = np.random.default_rng(SEED)
    scores = [
        metric._compute_score_from_stats(list(statistics[rng.integers(0, len(statistics), len(statistics))].sum(axis=0))).score  # noqa: SLF001, E501
        for _ in range(NUM_RESAMPLES)
    ]
    return float(np.percentile(scores, 2.5)), float(np.percentile(scores, 97.5))


def sentence_scores(translations: Sequence[str], references: Sequence[str]) -> list[float]:
    """The chrF of each sentence: BLEU says little about single ones."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return [metric.sentence_score(each, [reference]).score for each, reference in zip(translations, references, strict=True)]
