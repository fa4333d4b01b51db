"""A Parquet file, or a folder of them as data sets on the hub have: paths or whole pictures, labels, splits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from vitrail.data.arrow.columns import (
    LABELS,
    PATHS,
    SPLIT,
    class_names_of,
    content_of,
    embedded,
    find_column,
    open_rows,
)
from vitrail.data.arrow.files import Parquet
from vitrail.data.table import NO_SPLIT, Content, Table, split_number

SUFFIX = ".parquet"


def recognise(word: str) -> bool:
    """A Parquet file, or a folder in which they lie."""
    return bool(_files(Path(word)))


def open_source(word: str) -> Table:
    """The rows in their order, file by file; without a split column, a file called train-... is the split train."""
    path = Path(word)
    paths = _files(path)
    rows = Parquet(paths)
    heads = rows.schema.names
    picture = find_column(heads, PATHS, "pictures", str(path))
    label = find_column(heads, LABELS, "labels", str(path))
    light = [name for name in heads if name == label or name.casefold() in SPLIT]
    splits = None
    if len(light) == 1:
        numbers = [_split_of(each) for each in paths]
        splits = np.repeat(np.array(numbers, dtype=np.int8), rows.rows_of_files)
    folder = path if path.is_dir() else path.parent
    class_names = class_names_of(rows.schema, label)
    if not embedded(rows.schema.field(picture)):
        columns = rows.columns([*light, picture])
        return open_rows(columns, str(path), folder=folder, root=path, class_names=class_names, splits=splits)
    names = [f"{each.stem}:{row}" for each, num in zip(paths, rows.rows_of_files, strict=True) for row in range(num)]

    def content(index: int) -> Content:
        return content_of(rows.cell(picture, index), folder, names[index])

    return open_rows(
        rows.columns(light),
        str(path),
        folder=folder,
        root=path,
        class_names=class_names,
        names=names,
        splits=splits,
        content=content,
    )


def _files(path: Path) -> list[Path]:
    """The file itself, or the folder's files, in the order train, val, test."""
    if path.is_file():
        return [path] if path.suffix.lower() == SUFFIX else []
    found = [*path.glob(f"*{SUFFIX}"), *path.glob(f"data/*{SUFFIX}")] if path.is_dir() else []
    return sorted(found, key=lambda each: (_split_of(each), each.name))


def _split_of(path: Path) -> int:
    number = split_number(re.split(r"[-_.]", path.stem)[0])
    return NO_SPLIT if number is None else number
