"""A CSV or TSV file with one row per image: its path, its label or labels, and optionally its split."""

from __future__ import annotations

from pathlib import Path

from vitrail.data.arrow.columns import build_table
from vitrail.data.arrow.files import read_csv
from vitrail.data.table import Table

HAS_COLUMNS = True
DELIMITERS = {".csv": ",", ".tsv": "\t"}


def recognise(location: str) -> bool:
    """Whether this is a .csv or .tsv file."""
    return Path(location).suffix.lower() in DELIMITERS and Path(location).is_file()


def open_source(location: str, *, target: str | None = None) -> Table:
    """The rows in file order; paths are relative to the file's folder. `target` is a numeric column to predict."""
    path = Path(location)
    columns = read_csv(path, DELIMITERS[path.suffix.lower()], target)
    return build_table(columns, str(path), folder=path.parent, root=path, target=target)
