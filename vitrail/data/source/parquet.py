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
    joined,
    named,
    open_rows,
)
from vitrail.data.arrow.files import Parquet
from vitrail.data.layout import has_class_folders
from vitrail.data.table import NO_SPLIT, Content, Table, split_number

SUFFIX = ".parquet"


def recognise(word: str) -> bool:
    """A Parquet file, or a folder in which they lie."""
    return bool(_files(Path(word)))


def open_source(word: str) -> Table:
    """The rows in their order, file by file; without a split column, a file called train-... is the split train."""
    path = Path(word)
    files = [Parquet(each) for each in _files(path)]
    heads = files[0].schema.names
    whole = [name for name in heads if name.casefold() in PATHS and embedded(files[0].schema.field(name))]
    picture = whole[0] if whole else find_column(heads, PATHS, "pictures", str(path))
    label = find_column(heads, LABELS, "labels", str(path))
    columns, class_names = {}, []
    for file in files:
        find_column(file.schema.names, (picture,), "pictures", str(file.path))
        class_names += class_names_of(file.schema, label) or []
    labels = [named(file.column(label), class_names_of(file.schema, label), str(file.path)) for file in files]
    columns[label] = joined(labels, str(path))
    for name in (name for name in heads if name.casefold() in SPLIT):
        columns[name] = joined([file.column(name) for file in files], str(path))
    splits = None
    if len(columns) == 1:
        splits = np.repeat(np.array([_split_of(file.path) for file in files], dtype=np.int8), _counts(files))
    folder = path if path.is_dir() else path.parent
    if not embedded(files[0].schema.field(picture)):
        columns[picture] = joined([file.column(picture) for file in files], str(path))
        return open_rows(columns, str(path), folder=folder, root=path, class_names=class_names, splits=splits)
    places = [(file, row) for file in files for row in range(file.num_rows)]
    names = [f"{file.path.stem}:{row}" for file, row in places]

    def content(index: int) -> Content:
        file, row = places[index]
        return content_of(file.cell(picture, row), folder, names[index])

    return open_rows(
        columns,
        str(path),
        folder=folder,
        root=path,
        class_names=class_names,
        names=names,
        splits=splits,
        content=content,
    )


def _counts(files: list[Parquet]) -> list[int]:
    return [file.num_rows for file in files]


def _files(path: Path) -> list[Path]:
    """The file itself, or the folder's files, in the order train, val, test."""
    if path.is_file():
        return [path] if path.suffix.lower() == SUFFIX else []
    found = [*path.glob(f"*{SUFFIX}"), *path.glob(f"data/*{SUFFIX}")] if path.is_dir() else []
    if found and has_class_folders(path):
        return []
    return sorted((each for each in found if each.is_file()), key=lambda each: (_split_of(each), each.name))


def _split_of(path: Path) -> int:
    number = split_number(re.split(r"[-_.]", path.stem)[0])
    return NO_SPLIT if number is None else number
