"""A Parquet file, or a folder of them as on the Hugging Face hub: image paths or embedded images, labels, splits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from vitrail.data.arrow.columns import (
    LABELS,
    SPLIT,
    build_table,
    class_names_from_schema,
    concat_columns,
    find_column,
    find_image_column,
    holds_images,
    map_label_names,
    read_image_cell,
)
from vitrail.data.arrow.files import ParquetReader
from vitrail.data.class_folders import has_class_folders
from vitrail.data.name_column import NameColumn
from vitrail.data.table import NO_SPLIT, Content, Table, split_number

SUFFIX = ".parquet"
HAS_COLUMNS = True


def recognise(location: str) -> bool:
    """Whether this is a Parquet file, or a folder of them."""
    return bool(_list_files(Path(location)))


def open_source(location: str, *, target: str | None = None) -> Table:
    """The rows in order, file by file. Without a split column, a file named train-... is the split train.

    `target` is a numeric column to predict.
    """
    path = Path(location)
    files = [ParquetReader(each) for each in _list_files(path)]
    column_names = files[0].schema.names
    image_column = find_image_column(files[0].schema, str(path))
    wanted, what = (LABELS, "labels") if target is None else ((target.strip().casefold(),), "numbers to predict")
    label_column = find_column(column_names, wanted, what, str(path))
    class_names: list[str] = []
    labels = []
    for file in files:
        find_column(file.schema.names, (image_column,), "images", str(file.path))
        names_in_file = class_names_from_schema(file.schema, label_column)
        class_names += names_in_file or []
        labels.append(map_label_names(file.read_column(label_column), names_in_file, str(file.path)))
    columns = {label_column: concat_columns(labels, str(path))}
    for name in (name for name in column_names if name.casefold() in SPLIT):
        columns[name] = concat_columns([file.read_column(name) for file in files], str(path))
    splits = None
    if len(columns) == 1:
        splits = np.array([_split_of(file.path) for file in files for _ in range(file.num_rows)], dtype=np.int8)
    folder = path if path.is_dir() else path.parent
    if not holds_images(files[0].schema.field(image_column)):
        columns[image_column] = concat_columns([file.read_column(image_column) for file in files], str(path))
        return build_table(
            columns, str(path), folder=folder, root=path, class_names=class_names, splits=splits, target=target
        )
    rows = [(file, row) for file in files for row in range(file.num_rows)]
    names = NameColumn(f"{file.path.stem}:{row}" for file, row in rows)

    def content(index: int) -> Content:
        file, row = rows[index]
        return read_image_cell(file.read_cell(image_column, row), folder, names[index])

    return build_table(
        columns,
        str(path),
        folder=folder,
        root=path,
        class_names=class_names,
        names=names,
        splits=splits,
        content=content,
        target=target,
    )


def _list_files(path: Path) -> list[Path]:
    """The file itself, or the folder's files in the order train, val, test."""
    if path.is_file():
        return [path] if path.suffix.lower() == SUFFIX else []
    found = [*path.glob(f"*{SUFFIX}"), *path.glob(f"data/*{SUFFIX}")] if path.is_dir() else []
    if found and has_class_folders(path):
        return []
    return sorted((each for each in found if each.is_file()), key=lambda each: (_split_of(each), each.name))


def _split_of(path: Path) -> int:
    number = split_number(re.split(r"[-_.]", path.stem)[0])
    return NO_SPLIT if number is None else number
