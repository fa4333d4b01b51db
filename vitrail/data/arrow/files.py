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


def read_streams(paths: Sequence[Path]) -> tuple[Any, list[int]]:
    """The table of Arrow stream files, which stay on the disk until a row is asked for, and the rows of each file."""
    tables = []
    for path in paths:
        try:
            tables.append(pa.ipc.open_stream(pa.memory_map(str(path))).read_all())
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error, "a new copy.") from None
    try:
        return pa.concat_tables(tables), [len(table) for table in tables]
    except pa.ArrowException as error:
        raise _damaged(paths[0], error, "files of one data set.") from None


class Parquet:
    """Parquet files one after the other; light columns at once, pictures by groups of rows, the last few kept."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        try:
            self.files = [parquet.ParquetFile(path) for path in paths]
        except (pa.ArrowException, OSError) as error:
            raise _damaged(paths[0], error, "a new copy.") from None
        self.schema = self.files[0].schema_arrow
        groups = [(file, group) for file in self.files for group in range(file.num_row_groups)]
        self.groups = groups
        sizes = [file.metadata.row_group(group).num_rows for file, group in groups]
        self.ends = np.cumsum(sizes)
        self.rows_of_files = [file.metadata.num_rows for file in self.files]
        self.kept: OrderedDict[int, Any] = OrderedDict()
        self.lock = threading.Lock()

    def columns(self, names: Sequence[str]) -> dict[str, Any]:
        """Whole columns, for labels and splits."""
        try:
            table = pa.concat_tables([file.read(columns=list(names)) for file in self.files])
        except (pa.ArrowException, OSError, KeyError) as error:
            raise _damaged(self.paths[0], error, "files of one data set.") from None
        return {name: table.column(name) for name in names}

    def cell(self, column: str, row: int) -> Any:
        """One cell of a heavy column."""
        group = int(np.searchsorted(self.ends, row, side="right"))
        with self.lock:  # the next row asked for is mostly of the same group
            if group not in self.kept:
                file, number = self.groups[group]
                try:
                    self.kept[group] = file.read_row_group(number, columns=[column]).column(column)
                except (pa.ArrowException, OSError) as error:
                    raise _damaged(self.paths[0], error, "a new copy.") from None
                if len(self.kept) > KEPT:
                    self.kept.popitem(last=False)
            self.kept.move_to_end(group)
            cells = self.kept[group]
        return cells[row - int(self.ends[group - 1] if group else 0)]


def _damaged(path: Path, error: Exception, hint: str) -> DataError:
    return DataError(f"{path} is no table that can be read.", got=brief(error), hint=hint)
