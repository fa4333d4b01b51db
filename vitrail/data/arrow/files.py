"""Tabular files: CSV read whole but compactly, Parquet by row groups, Arrow streams memory-mapped."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from vitrail.data.arrow.columns import CLIP_PATHS, LABELS, PATHS, SPLIT
from vitrail.errors import DataError, brief

MAX_CACHED_GROUPS = 4


def read_csv(path: Path, delimiter: str, target: str | None = None) -> dict[str, Any]:
    """The relevant columns as text: 007 stays 007, and a class may be called null.

    `target` is another relevant column. Those that are not are None, so that messages can still list them.
    """
    with path.open("rb") as file:
        first = file.readline(2**16)
    if delimiter == "," and b"," not in first and b";" in first:  # what spreadsheets write in half of Europe
        delimiter = ";"
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        with csv.open_csv(path, parse_options=parse) as reader:
            header = reader.schema.names
        wanted = (*PATHS, *CLIP_PATHS, *LABELS, *SPLIT, *([] if target is None else [target.strip().casefold()]))
        relevant = [name for name in header if name.strip().casefold() in wanted]
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(relevant, pa.string()), include_columns=relevant, strings_can_be_null=False
        )
        rows = csv.read_csv(path, parse_options=parse, convert_options=convert) if relevant else None
    except pa.ArrowException as error:
        raise _unreadable(path, error, "a header and one row per image, separated by commas.") from None
    if len(set(header)) < len(header):
        hint = "a different name for each column."
        raise DataError(f"{path} has two columns with the same name.", got=f"{', '.join(header)}.", hint=hint)
    return {name: rows.column(name) if rows is not None and name in relevant else None for name in header}


def read_arrow_stream(paths: Sequence[Path]) -> Any:
    """The table in Arrow stream files; rows stay on disk until they are read."""
    tables = []
    for path in paths:
        if not path.is_file():  # opening a pipe would block
            raise _unreadable(path, ValueError("not a regular file"), "a fresh copy.")
        try:
            tables.append(pa.ipc.open_stream(pa.memory_map(str(path))).read_all())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(path, error, "a fresh copy.") from None
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise _unreadable(paths[0], error, "files of one dataset.") from None


class ParquetReader:
    """A Parquet file: labels are read as whole columns, images by row group, with the latest groups cached."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = parquet.ParquetFile(path)
            self.schema = self.file.schema_arrow
            self.num_rows = self.file.metadata.num_rows
            groups = range(self.file.num_row_groups)
            self.ends = np.cumsum([self.file.metadata.row_group(group).num_rows for group in groups])
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(path, error, "a fresh copy.") from None
        if self.num_rows != (self.ends[-1] if len(self.ends) else 0):
            raise _unreadable(path, ValueError(f"{self.num_rows} rows in its header"), "a fresh copy.")
        self.cache: OrderedDict[int, Any] = OrderedDict()
        self.lock = threading.Lock()

    def read_column(self, name: str) -> Any:
        """A whole column, for labels and splits."""
        try:
            column = self.file.read(columns=[name]).column(name)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise _unreadable(self.path, error, f"adding a column {name}.") from None
        if len(column) != self.num_rows:
            raise _unreadable(self.path, ValueError(f"{len(column)} rows instead of {self.num_rows}"), "a fresh copy.")
        return column

    def read_cell(self, name: str, row: int) -> Any:
        """One cell of the image column."""
        group = int(np.searchsorted(self.ends, row, side="right"))
        with self.lock:
            if group not in self.cache:
                cells = self.file.read_row_group(group, columns=[name]).column(name)
                cells.validate(full=True)
                self.cache[group] = cells
                if len(self.cache) > MAX_CACHED_GROUPS:
                    self.cache.popitem(last=False)
            self.cache.move_to_end(group)
            cells = self.cache[group]
        return cells[row - int(self.ends[group - 1] if group else 0)]


def _unreadable(path: Path, error: Exception, hint: str) -> DataError:
    return DataError(f"{path} is not a readable table.", got=brief(error), hint=hint)
