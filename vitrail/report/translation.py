"""The report of a translator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.data.table import Source


def write_translation_report(path: Path, source: Source, *, model: Any = None) -> None:
    """Write report.html of a translator."""
