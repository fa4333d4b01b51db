"""The translations of a run, in translations.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.errors import RunError, brief
from vitrail.files import write_text
from vitrail.run.directory import check_table

TRANSLATIONS = "translations.csv"


class TranslationRow(NamedTuple):
    """One sentence, its translation, and the reference."""

    split: str
    name: str
    language: str
    source: str
    translation: str
    reference: str


def write_translations(path: Path, rows: Sequence[TranslationRow]) -> None:
    """Write all translations."""
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(TranslationRow._fields)
    table.writerows(rows)
    write_text(buffer.getvalue(), path, RunError)


def read_translations(path: Path) -> list[TranslationRow]:
    """Read all translations."""
    check_table(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        if tuple(header) != TranslationRow._fields:
            raise ValueError(f"the columns {', '.join(header)}")
        return [TranslationRow(*row) for row in rows]
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise RunError(f"{path} cannot be read.", got=brief(error), hint="training again.") from None
