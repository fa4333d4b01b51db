"""A Parquet file, or a folder of them as data sets on the hub have: paths or whole pictures, labels, splits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from vitrail.data.arrow.columns import (
    LABELS,
    SPLIT,
    class_names_of,
    content_of,
    embedded,
    find_column,
    find_image_column,
    joined,
    named,
    open_rows,
)
from vitrail.data.arrow.files import Parquet
from vitrail.data.class_folders import has_class_folders
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
    picture = find_image_column(files[0].schema, str(path))
    label = find_column(heads, LABELS, "labels", str(path))
    class_names: list[str] = []
    labels = []
    for file in files:
        find_column(file.schema.names, (picture,), "pictures", str(file.path))
        known = class_names_of(file.schema, label)
        class_names += known or []
        labels.append(named(file.column(label), known, str(file.path)))
    columns = {label: joined(labels, str(path))}
    for name in (name for name in heads if name.casefold() in SPLIT):
        columns[name] = joined([file.column(name) for file in files], str(path))
    splits = None
    if len(columns) == 1:
        splits = np.array([_split_of(file.path) for file in files for _ in range(file.num_rows)], dtype=np.int8)
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
