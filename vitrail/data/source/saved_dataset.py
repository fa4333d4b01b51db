"""A Hugging Face `datasets` dataset saved with `save_to_disk`: Arrow files, memory-mapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.arrow.columns import (
    LABELS,
    build_table,
    class_names_from_features,
    concat_columns,
    find_column,
    find_image_column,
    map_label_names,
    normalise_column,
    read_image_cell,
)
from vitrail.data.arrow.files import read_arrow_stream
from vitrail.data.class_folders import has_class_folders
from vitrail.data.decode import read_file
from vitrail.data.name_column import NameColumn
from vitrail.data.table import NO_SPLIT, Content, Table, split_number
from vitrail.errors import DataError, brief

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def recognise(location: str) -> bool:
    """Whether this is a folder that `save_to_disk` wrote."""
    folder = Path(location)
    return any((folder / name).is_file() for name in (STATE, SPLITS)) and not has_class_folders(folder)


def open_source(location: str) -> Table:
    """The rows of all splits, in the order train, val, test."""
    path = Path(location)
    folders = [(NO_SPLIT, path)]
    if (path / SPLITS).is_file():
        split_names = _check_names(_read_json(path / SPLITS).get("splits"), "splits", path)
        folders = sorted((_split_of(name), path / name) for name in split_names)
    names: list[str] = []
    labels, chunks, splits, class_names = [], [], [], []
    for split, folder in folders:
        table = read_arrow_stream(_list_arrow_files(folder))
        image_column = find_image_column(table.schema, str(folder))
        label_column = find_column(table.schema.names, LABELS, "labels", str(folder))
        split_class_names = class_names_from_features(_read_json(folder / INFO).get("features"), label_column)
        class_names += split_class_names or []
        labels.append(map_label_names(table.column(label_column), split_class_names, str(folder)))
        for chunk in table.column(image_column).chunks:
            chunks.append((len(names), normalise_column(chunk, str(folder))))
            names += [f"{folder.name}/{len(names) + row:06d}" for row in range(len(chunk))]
        splits += [split] * len(table)
    column, starts = NameColumn(names), np.array([start for start, _ in chunks])

    def content(index: int) -> Content:
        start, chunk = chunks[int(np.searchsorted(starts, index, side="right")) - 1]
        return read_image_cell(chunk[index - start], path, column[index])

    return build_table(
        {"label": concat_columns(labels, str(path))},
        str(path),
        folder=path,
        root=path,
        class_names=class_names,
        names=column,
        splits=np.array(splits, dtype=np.int8),
        content=content,
    )


def _split_of(name: str) -> int:
    number = split_number(name)
    return NO_SPLIT if number is None else number


def _list_arrow_files(folder: Path) -> list[Path]:
    entries = _read_json(folder / STATE).get("_data_files")
    names = [entry.get("filename") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return [folder / name for name in _check_names(names, "files", folder)]


def _check_names(names: Any, what: str, path: Path) -> list[str]:
    """Refuse anything but a list of plain names, so that no file can point outside the folder."""
    if not isinstance(names, list) or not names or not all(_is_plain_name(name) for name in names):
        raise DataError(
            f"{path} is not a dataset saved with save_to_disk.",
            got=f"{what} {names!r:.80}.",
            hint="running save_to_disk again.",
        )
    return names


def _is_plain_name(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name not in ("", ".", "..")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_file(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read.", got=brief(error), hint="running save_to_disk again.") from None
    return document if isinstance(document, dict) else {}
