"""A data set of Hugging Face's `datasets`, saved on disk: Arrow files that are mapped, not loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.arrow.columns import (
    LABELS,
    class_names_in,
    content_of,
    find_column,
    find_image_column,
    joined,
    named,
    open_rows,
    plain,
)
from vitrail.data.arrow.files import read_stream
from vitrail.data.class_folders import has_class_folders
from vitrail.data.decode import read_file
from vitrail.data.table import NO_SPLIT, Content, Table, split_number
from vitrail.errors import DataError, brief

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def recognise(word: str) -> bool:
    """A folder that `save_to_disk` wrote."""
    folder = Path(word)
    return any((folder / name).is_file() for name in (STATE, SPLITS)) and not has_class_folders(folder)


def open_source(word: str) -> Table:
    """The rows of all splits, in the order train, val, test."""
    path = Path(word)
    folders = [(NO_SPLIT, path)]
    if (path / SPLITS).is_file():
        folders = sorted((_split(name), path / name) for name in _names(_read(path / SPLITS), "splits", path))
    names: list[str] = []
    labels, cells, splits, class_names = [], [], [], []
    for split, folder in folders:
        table = read_stream(_arrow_files(folder))
        picture = find_image_column(table.schema, str(folder))
        label = find_column(table.schema.names, LABELS, "labels", str(folder))
        known = class_names_in(_read(folder / INFO).get("features"), label)
        class_names += known or []
        labels.append(named(table.column(label), known, str(folder)))
        for chunk in table.column(picture).chunks:
            cells.append((len(names), plain(chunk, str(folder))))
            names += [f"{folder.name}/{len(names) + row:06d}" for row in range(len(chunk))]
        splits += [split] * len(table)
    starts = np.array([start for start, _ in cells])

    def content(index: int) -> Content:
        start, chunk = cells[int(np.searchsorted(starts, index, side="right")) - 1]
        return content_of(chunk[index - start], path, names[index])

    return open_rows(
        {"label": joined(labels, str(path))},
        str(path),
        folder=path,
        root=path,
        class_names=class_names,
        names=names,
        splits=np.array(splits, dtype=np.int8),
        content=content,
    )


def _split(name: str) -> int:
    number = split_number(name)
    return NO_SPLIT if number is None else number


def _arrow_files(folder: Path) -> list[Path]:
    entries = _read(folder / STATE).get("_data_files")
    names = [entry.get("filename") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return [folder / name for name in _names({"files": names}, "files", folder)]


def _names(document: dict[str, Any], key: str, path: Path) -> list[str]:
    """A list of names without folders in them, for a file may not lead us elsewhere."""
    names = document.get(key)
    if not isinstance(names, list) or not names or not all(_is_name(name) for name in names):
        raise DataError(
            f"{path} is no data set saved on disk.", got=f"{key} {names!r:.80}.", hint="save_to_disk again."
        )
    return names


def _is_name(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name not in ("", ".", "..")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_file(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read.", got=brief(error), hint="save_to_disk again.") from None
    return document if isinstance(document, dict) else {}
