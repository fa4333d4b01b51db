"""A CSV (or TSV) file with a row for each picture: its path, its label or labels, and its split if it has one."""

from __future__ import annotations

from pathlib import Path

from vitrail.data.arrow.columns import open_rows
from vitrail.data.arrow.files import read_csv
from vitrail.data.table import Table

DELIMITERS = {".csv": ",", ".tsv": "\t"}


def recognise(word: str) -> bool:
    """A CSV file by its name."""
    return Path(word).suffix.lower() in DELIMITERS and Path(word).is_file()


def open_source(word: str) -> Table:
    """The rows in their order; paths are taken from the folder of the file."""
    path = Path(word)
    columns = read_csv(path, DELIMITERS[path.suffix.lower()])
    return open_rows(columns, str(path), folder=path.parent, root=path)
