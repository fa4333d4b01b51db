"""Files of rows: CSV read whole but compactly, Parquet by groups of rows, Arrow streams mapped into memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from vitrail.data.arrow.columns import LABELS, PATHS, SPLIT
from vitrail.errors import DataError, brief

KEPT = 4  # groups of rows in memory at a time


def read_csv(path: Path, delimiter: str) -> dict[str, Any]:
    """The columns that matter, as text: 007 stays 007, and a class may be called null.

    Columns that mean nothing here are there without content, so that messages can name them.
    """
    with path.open("rb") as file:
        first = file.readline(2**16)
    if delimiter == "," and b"," not in first and b";" in first:  # as spreadsheets write in half of Europe
        delimiter = ";"
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        with csv.open_csv(path, parse_options=parse) as reader:
            head = reader.schema.names
        wanted = [name for name in head if name.strip().casefold() in (*PATHS, *LABELS, *SPLIT)]
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.string()), include_columns=wanted, strings_can_be_null=False
        )
        rows = csv.read_csv(path, parse_options=parse, convert_options=convert) if wanted else None
    except pa.ArrowException as error:
        raise _damaged(path, error, "a head and a row for each picture, with commas between.") from None
    if len(set(head)) < len(head):
        raise DataError(f"{path} has two columns of one name.", got=f"{', '.join(head)}.", hint="one of them.")
    return {name: rows.column(name) if rows is not None and name in wanted else None for name in head}


def read_stream(paths: Sequence[Path]) -> Any:
    """The table of Arrow stream files, which stay on the disk until a row is asked for."""
    tables = []
    for path in paths:
        if not path.is_file():  # a pipe would be waited for
            raise _damaged(path, ValueError("no plain file"), "a new copy.")
        try:
            tables.append(pa.ipc.open_stream(pa.memory_map(str(path))).read_all())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(path, error, "a new copy.") from None
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise _damaged(paths[0], error, "files of one data set.") from None


class Parquet:
    """A Parquet file; light columns at once, pictures by groups of rows, the last few kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = parquet.ParquetFile(path)
            self.schema = self.file.schema_arrow
            self.num_rows = self.file.metadata.num_rows
            groups = range(self.file.num_row_groups)
            self.ends = np.cumsum([self.file.metadata.row_group(group).num_rows for group in groups])
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(path, error, "a new copy.") from None
        if self.num_rows != (self.ends[-1] if len(self.ends) else 0):
            raise _damaged(path, ValueError(f"{self.num_rows} rows in its head"), "a new copy.")
        self.kept: OrderedDict[int, Any] = OrderedDict()
        self.lock = threading.Lock()

    def column(self, name: str) -> Any:
        """A whole column, for labels and splits."""
        try:
            column = self.file.read(columns=[name]).column(name)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise _damaged(self.path, error, f"a column {name}.") from None
        if len(column) != self.num_rows:
            raise _damaged(self.path, ValueError(f"{len(column)} rows instead of {self.num_rows}"), "a new copy.")
        return column

    def cell(self, name: str, row: int) -> Any:
        """One cell of a heavy column."""
        group = int(np.searchsorted(self.ends, row, side="right"))
        with self.lock:  # the next row asked for is mostly of the same group
            if group not in self.kept:
                cells = self.file.read_row_group(group, columns=[name]).column(name)
                cells.validate(full=True)
                self.kept[group] = cells
                if len(self.kept) > KEPT:
                    self.kept.popitem(last=False)
            self.kept.move_to_end(group)
            cells = self.kept[group]
        return cells[row - int(self.ends[group - 1] if group else 0)]


def _damaged(path: Path, error: Exception, hint: str) -> DataError:
    return DataError(f"{path} is no table that can be read.", got=brief(error), hint=hint)
