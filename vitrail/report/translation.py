"""The report of a translator: BLEU and chrF, and its best and worst translations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.data.text.parallel import LANGUAGES
from vitrail.metric.tokens import bits
from vitrail.metric.translation import sentence_scores
from vitrail.report.run import read_files
from vitrail.report.text_run import write_text_report
from vitrail.run.translation_rows import TRANSLATIONS, TranslationRow, read_translations

NUM_SHOWN = 10  # sentences, of the best and of the worst


class ScoredRow(NamedTuple):
    """A translation and its chrF."""

    chrf: float
    row: TranslationRow


class Extremes(NamedTuple):
    """The best and the worst translations to a language, each from the most extreme one on."""

    language: str
    best: list[ScoredRow]
    worst: list[ScoredRow]


def write_translation_report(path: Path) -> None:
    """Write report.html of a translator."""
    run = read_files(path, kind="translation")
    rows = [row for row in read_translations(path / TRANSLATIONS) if row.split == run["split"]]
    languages = run["summary"]["languages"]
    loss = run["summary"]["loss"]
    write_text_report(
        path,
        "translation.html",
        run,
        names={**{each: each for each in (run["facts"]["source"], *languages)}, **LANGUAGES},
        loss_bits=None if loss is None else bits(loss),
        extremes=[find_extremes(language, [row for row in rows if row.language == language]) for language in languages],
    )


def find_extremes(language: str, rows: Sequence[TranslationRow]) -> Extremes:
    """Sort the translations to a language by their chrF; a sentence is never both among the best and the worst."""
    scores = sentence_scores([row.translation for row in rows], [row.reference for row in rows])
    scored = sorted(map(ScoredRow, scores, rows), key=lambda each: -each.chrf)
    num = min(NUM_SHOWN, len(scored) // 2)
    return Extremes(language, scored[: num or 1], scored[::-1][:num])
