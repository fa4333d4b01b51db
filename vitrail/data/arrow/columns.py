"""Columns of a table of pictures: found by their usual names, labels bound by name, pictures read when asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vitrail.data.decode import file_stamp, read_file
from vitrail.data.table import NO_SPLIT, SPLIT_NAMES, SPLITS, Content, Table, check_names, no_stamp, sorted_classes
from vitrail.errors import DataError, brief

PATHS = ("path", "file", "filename", "file_name", "filepath", "image_path", "image", "img")
LABELS = ("label", "class", "category", "target", "fine_label", "labels", "classes", "tags")
SEVERAL = ("labels", "classes", "tags")  # columns of text that hold several, set apart by ; or |
SPLIT = ("split", "set", "subset", "partition")


class Texts(Sequence[str]):
    """A column of text that stays in Arrow's memory, of which a million rows take some ten megabytes."""

    def __init__(self, column: Any) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, index: Any) -> Any:
        return self.column[index].as_py()


def find_column(columns: Sequence[str], wanted: Sequence[str], what: str, origin: str) -> str:
    """The column that is called by one of the usual names, whatever its case."""
    folded = {column.strip().casefold(): column for column in reversed(columns)}
    for name in wanted:
        if name in folded:
            return folded[name]
    raise DataError(
        f"{origin} has no column for the {what}.",
        got=f"the columns {', '.join(columns[:12])}.",
        hint=f"a column called {' or '.join(wanted[:3])}.",
    )


def find_image_column(schema: Any, origin: str) -> str:
    """The column of the pictures: one that holds them whole rather than one that names files."""
    whole = [name for name in schema.names if name.casefold() in PATHS and embedded(schema.field(name))]
    return whole[0] if whole else find_column(schema.names, PATHS, "pictures", origin)


def open_rows(
    columns: dict[str, Any],
    origin: str,
    *,
    folder: Path,
    root: Path,
    class_names: Sequence[str] = (),
    names: Sequence[str] | None = None,
    splits: NDArray[np.int8] | None = None,
    content: Callable[[int], Content] | None = None,
    stamp: Callable[[int], str] = no_stamp,
) -> Table:
    """A table from columns of labels, of splits if there are any, and of paths unless the content is given.

    `class_names` are classes besides those that occur.
    """
    if content is None:
        paths = _texts(columns[find_column(list(columns), PATHS, "pictures", origin)], "path", origin)
        names, content, stamp = _files(Texts(paths), folder)
    assert names is not None
    if not len(names):
        raise DataError(f"{origin} has no rows.", got="a head without a body.", hint="a row for each picture.")
    key = find_column(list(columns), LABELS, "labels", origin)
    classes, labels, starts = _labels(columns[key], key.strip().casefold(), class_names, origin)
    found = [column for column in columns if column.strip().casefold() in SPLIT]
    if splits is None:
        splits = _splits(columns[found[0]], origin) if found else np.full(len(names), NO_SPLIT, dtype=np.int8)
    if not len(names) == len(splits) == (len(labels) if starts is None else len(starts) - 1):
        raise DataError(f"{origin} has columns of unequal length.", got=f"{len(names)} pictures.", hint="a new copy.")
    return Table(
        origin=origin,
        names=names,
        classes=classes,
        labels=labels,
        starts=starts,
        splits=splits,
        content=content,
        stamp=stamp,
        root=root,
    )


def plain(column: Any, origin: str) -> Any:
    """A column in one piece, checked in every offset and byte, without dictionaries and large types."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        column.validate(full=True)
        kind = column.type
        if pa.types.is_dictionary(kind):
            return plain(column.cast(kind.value_type), origin)
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return column.cast(pa.string())
        if pa.types.is_large_list(kind):
            return column.cast(pa.list_(kind.value_type))
    except pa.ArrowException as error:
        raise DataError(f"{origin} has a damaged column.", got=brief(error), hint="a new copy.") from None
    return column


def named(column: Any, class_names: Sequence[str] | None, origin: str) -> Any:
    """A column of labels by name, where numbers stand for names."""
    column = plain(column, origin)
    if class_names is None:
        return column
    check_names(class_names, origin)
    if pa.types.is_list(column.type):
        return pa.ListArray.from_arrays(column.offsets, named(column.values, class_names, origin))
    if not pa.types.is_integer(column.type):
        return column
    if column.null_count:
        _texts(column, "label", origin)
    numbers = column.to_numpy(zero_copy_only=False)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(class_names):
        raise DataError(
            f"{origin} has a label that names no class.",
            got=f"{numbers.min()} to {numbers.max()} with {len(class_names)} names.",
            hint=f"0 to {len(class_names) - 1}.",
        )
    return pa.array(list(class_names), pa.string()).take(column)


def joined(columns: Sequence[Any], origin: str) -> Any:
    """Columns of several files, one after the other."""
    try:
        return pa.concat_arrays([plain(column, origin) for column in columns])
    except pa.ArrowException as error:
        raise DataError(f"{origin} has files that do not belong together.", got=brief(error)) from None


def _texts(column: Any, what: str, origin: str, *, empty: bool = False) -> Any:
    """A column as text without gaps."""
    column = plain(column, origin)
    if pa.types.is_null(column.type) or column.null_count:
        row = 0 if pa.types.is_null(column.type) else pc.index(column.is_null(), value=True).as_py()
        raise DataError(f"{origin} has a row without a {what}.", got=f"row {row + 1}.", hint="a value there.")
    if not any(test(column.type) for test in (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)):
        raise DataError(f"{origin} has a {what} of another kind.", got=f"{column.type}.", hint="text or whole numbers.")
    texts = column if pa.types.is_string(column.type) else column.cast(pa.string())
    if not empty and len(texts) and (row := pc.index(texts, "").as_py()) >= 0:
        raise DataError(f"{origin} has a row without a {what}.", got=f"row {row + 1}.", hint="a value there.")
    return texts


def _files(paths: Sequence[str], folder: Path) -> tuple[Sequence[str], Callable[[int], Content], Callable[[int], str]]:
    return (
        paths,
        lambda index: read_file(folder / paths[index], name=paths[index]),
        lambda index: file_stamp(folder / paths[index]),
    )


def _labels(
    column: Any, key: str, class_names: Sequence[str], origin: str
) -> tuple[tuple[str, ...], NDArray[np.int32], NDArray[np.int64] | None]:
    """The classes, each row's class numbers, and where they start if a row may have several."""
    column, starts = plain(column, origin), None
    if pa.types.is_string(column.type) and key in SEVERAL:
        column = pc.split_pattern_regex(pc.utf8_trim_whitespace(column), r"\s*[;|]\s*")
    if pa.types.is_list(column.type):
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        texts = (
            _texts(pc.list_flatten(column), "label", origin, empty=True) if counts.sum() else pa.array([], pa.string())
        )
        kept = pc.not_equal(pc.utf8_trim_whitespace(texts), "")  # an empty cell is a picture without a label
        rows = np.repeat(np.arange(len(counts)), counts)[kept.to_numpy(zero_copy_only=False)]
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(counts)))]).astype(np.int64)
        column = texts.filter(kept)
    texts = _texts(pc.utf8_trim_whitespace(_texts(column, "label", origin, empty=True)), "label", origin)
    coded = texts.dictionary_encode()
    known = coded.dictionary.to_pylist()
    classes = sorted_classes([*class_names, *known])
    number = {name: index for index, name in enumerate(classes)}
    order = np.array([number[name] for name in known], dtype=np.int32)
    return classes, order[coded.indices.to_numpy(zero_copy_only=False)], starts


def _splits(column: Any, origin: str) -> NDArray[np.int8]:
    coded = _texts(column, "split", origin).dictionary_encode()
    numbers = []
    for word in coded.dictionary.to_pylist():
        name = SPLIT_NAMES.get(word.strip().casefold())
        if name is None:
            raise DataError(f"{origin} has a split that is none.", got=f"{word!r}.", hint=f"{', '.join(SPLITS)}.")
        numbers.append(SPLITS.index(name))
    return np.array(numbers, dtype=np.int8)[coded.indices.to_numpy(zero_copy_only=False)]


def class_names_of(schema: Any, label: str) -> list[str] | None:
    """The class names that Hugging Face's `datasets` writes into a schema, if they are there."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    return class_names_in(features, label)


def class_names_in(features: Any, label: str) -> list[str] | None:
    """The class names of a column in the features of `datasets`, plain or inside a list."""
    feature = features.get(label) if isinstance(features, dict) else None
    for _ in range(2):
        if isinstance(feature, list):
            feature = feature[0] if feature else None
        if isinstance(feature, dict) and isinstance(feature.get("names"), list):
            return [str(name) for name in feature["names"]]
        feature = feature.get("feature") if isinstance(feature, dict) else None
    return None


def embedded(column: Any) -> bool:
    """Whether a column holds whole pictures, as bytes or as `datasets` stores them."""
    kind = column.type
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" for field in kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def content_of(cell: Any, folder: Path, name: str) -> Content:
    """The bytes of a picture in a cell, or of the file that it names."""
    value = cell.as_py()
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        return read_file(folder / value, name=name)
    if not isinstance(value, bytes):
        raise DataError(f"{name} holds no picture.", got=f"{type(value).__name__}.", hint="leaving it out.")
    return value
