"""Columns of a table of images: found by their usual names, labels mapped to class names, images read lazily."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vitrail.data.decode import file_stamp, read_file
from vitrail.data.media import modality_of
from vitrail.data.table import (
    MAX_NUMBER,
    NO_SPLIT,
    SPLIT_NAMES,
    SPLITS,
    Content,
    Table,
    check_names,
    no_stamp,
    sorted_classes,
)
from vitrail.errors import DataError, brief

PATHS = ("path", "file", "filename", "file_name", "filepath", "image_path", "image", "img")
CLIP_PATHS = {"sound": "sound", "audio": "sound", "video": "video"}  # columns of paths, and their modality
LABELS = ("label", "class", "category", "target", "fine_label", "labels", "classes", "tags")
MULTI_LABEL = ("labels", "classes", "tags")  # text columns with several labels, separated by ; or |
SPLIT = ("split", "set", "subset", "partition")
NUM_SUFFIXES = 1000  # paths looked at to tell images from clips


class StringColumn(Sequence[str]):
    """A text column that stays in Arrow's memory, where a million rows take some ten megabytes."""

    def __init__(self, column: Any) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, index: Any) -> Any:
        return self.column[index].as_py()


def find_column(columns: Sequence[str], names: Sequence[str], what: str, origin: str) -> str:
    """The column with the first of these names that occurs, whatever its case."""
    folded = {column.strip().casefold(): column for column in reversed(columns)}
    for name in names:
        if name in folded:
            return folded[name]
    raise DataError(
        f"{origin} has no column for the {what}.",
        got=f"the columns {', '.join(columns[:12])}.",
        hint=f"a column called {' or '.join(names[:3])}.",
    )


def find_image_column(schema: Any, origin: str) -> str:
    """The column of images: embedded ones if there are any, else their paths."""
    embedded = [name for name in schema.names if name.casefold() in PATHS and holds_images(schema.field(name))]
    return embedded[0] if embedded else find_column(schema.names, PATHS, "images", origin)


def build_table(
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
    target: str | None = None,
) -> Table:
    """A table from columns of labels, of paths unless there is a `content` function, and of splits if present.

    `class_names` are classes to list even if no row has them. `target` is a numeric column, read instead of labels.
    """
    modality = "image"
    if content is None:
        key = find_column(list(columns), (*PATHS, *CLIP_PATHS), "images", origin)
        names = StringColumn(_as_text(columns[key], "path", origin))
        modality = _modality_of_paths(list(columns), key.strip().casefold(), names, origin)
        content, stamp = _read_paths(names, folder, modality)
    assert names is not None
    if not len(names):
        raise DataError(f"{origin} has no rows.", got="only a header.", hint="one row per image.")
    classes: tuple[str, ...] = ()
    labels, starts, values = np.zeros(len(names), dtype=np.int32), None, None
    if target is None:
        key = find_column(list(columns), LABELS, "labels", origin)
        classes, labels, starts = _encode_labels(columns[key], key.strip().casefold(), class_names, origin)
    else:
        key = find_column(list(columns), (target.strip().casefold(),), "numbers to predict", origin)
        values = _read_numbers(columns[key], key, origin)
    split_columns = [column for column in columns if column.strip().casefold() in SPLIT]
    if splits is None and split_columns:
        splits = _encode_splits(columns[split_columns[0]], origin)
    elif splits is None:
        splits = np.full(len(names), NO_SPLIT, dtype=np.int8)
    if not len(names) == len(splits) == (len(labels) if starts is None else len(starts) - 1):
        raise DataError(f"{origin} has columns of unequal length.", got=f"{len(names)} images.", hint="a fresh copy.")
    return Table(
        origin=origin,
        names=names,
        classes=classes,
        labels=labels,
        starts=starts,
        values=values,
        splits=splits,
        content=content,
        stamp=stamp,
        root=root,
        modalities=(modality,),
    )


def _modality_of_paths(columns: Sequence[str], key: str, paths: Sequence[str], origin: str) -> str:
    """What the paths in a column lead to: as it is called, or else by the suffixes of most."""
    clips = [name for name in columns if name.strip().casefold() in CLIP_PATHS]
    if key in CLIP_PATHS and len(clips) > 1:
        raise DataError(
            f"{origin} has several modalities.",
            got=f"the columns {', '.join(clips)}.",
            hint="--recipe align, or a table with one of them.",
        )
    if key in CLIP_PATHS or not len(paths):
        return CLIP_PATHS.get(key, "image")
    found = Counter(modality_of(paths[index]) or "image" for index in range(min(len(paths), NUM_SUFFIXES)))
    return found.most_common(1)[0][0]


def normalise_column(column: Any, origin: str) -> Any:
    """A column as one fully validated chunk, without dictionaries and large types."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        column.validate(full=True)
        kind = column.type
        if pa.types.is_dictionary(kind):
            return normalise_column(column.cast(kind.value_type), origin)
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return column.cast(pa.string())
        if pa.types.is_large_list(kind):
            return column.cast(pa.list_(kind.value_type))
    except pa.ArrowException as error:
        raise DataError(f"{origin} has a damaged column.", got=brief(error), hint="a fresh copy.") from None
    return column


def map_label_names(column: Any, class_names: Sequence[str] | None, origin: str) -> Any:
    """A column of labels with class numbers replaced by names."""
    column = normalise_column(column, origin)
    if class_names is None:
        return column
    check_names(class_names, origin)
    if pa.types.is_list(column.type):
        return pa.ListArray.from_arrays(column.offsets, map_label_names(column.values, class_names, origin))
    if not pa.types.is_integer(column.type):
        return column
    if column.null_count:
        _as_text(column, "label", origin)  # raises
    numbers = column.to_numpy(zero_copy_only=False)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(class_names):
        raise DataError(
            f"{origin} has a label without a class name.",
            got=f"labels {numbers.min()} to {numbers.max()} and {len(class_names)} class names.",
            hint=f"labels 0 to {len(class_names) - 1}.",
        )
    return pa.array(list(class_names), pa.string()).take(column)


def concat_columns(columns: Sequence[Any], origin: str) -> Any:
    """The same column of several files, concatenated."""
    try:
        return pa.concat_arrays([normalise_column(column, origin) for column in columns])
    except pa.ArrowException as error:
        raise DataError(f"{origin} has files with different columns.", got=brief(error)) from None


def _as_text(column: Any, what: str, origin: str, *, allow_empty: bool = False) -> Any:
    """A column as text; missing values are refused, and so are empty ones unless allowed."""
    column = normalise_column(column, origin)
    if pa.types.is_null(column.type) or column.null_count:
        row = 0 if pa.types.is_null(column.type) else pc.index(column.is_null(), value=True).as_py()
        raise DataError(f"{origin} has a row without a {what}.", got=f"row {row + 1}.", hint="filling it in.")
    if not any(test(column.type) for test in (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)):
        raise DataError(f"{origin} has a {what} of the wrong type.", got=f"{column.type}.", hint="text or integers.")
    texts = column if pa.types.is_string(column.type) else column.cast(pa.string())
    if not allow_empty and len(texts) and (row := pc.index(texts, "").as_py()) >= 0:
        raise DataError(f"{origin} has a row without a {what}.", got=f"row {row + 1}.", hint="filling it in.")
    return texts


def _read_paths(
    paths: Sequence[str], folder: Path, modality: str
) -> tuple[Callable[[int], Content], Callable[[int], str]]:
    """Content and stamps of images or clips stored in files."""
    return (
        (lambda index: read_file(folder / paths[index], name=paths[index]))
        if modality == "image"
        else (lambda index: folder / paths[index]),
        lambda index: file_stamp(folder / paths[index]),
    )


def _encode_labels(
    column: Any, key: str, class_names: Sequence[str], origin: str
) -> tuple[tuple[str, ...], NDArray[np.int32], NDArray[np.int64] | None]:
    """The classes, each row's class numbers, and for multi-label columns where each row's numbers start."""
    column, starts = normalise_column(column, origin), None
    if pa.types.is_string(column.type) and key in MULTI_LABEL:
        column = pc.split_pattern_regex(pc.utf8_trim_whitespace(column), r"\s*[;|]\s*")
    if pa.types.is_list(column.type):
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        texts = pa.array([], pa.string())
        if counts.sum():
            texts = _as_text(pc.list_flatten(column), "label", origin, allow_empty=True)
        present = pc.not_equal(pc.utf8_trim_whitespace(texts), "")  # an empty cell is an image without labels
        rows = np.repeat(np.arange(len(counts)), counts)[present.to_numpy(zero_copy_only=False)]
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(counts)))]).astype(np.int64)
        column = texts.filter(present)
    texts = _as_text(pc.utf8_trim_whitespace(_as_text(column, "label", origin, allow_empty=True)), "label", origin)
    encoded = texts.dictionary_encode()
    occurring = encoded.dictionary.to_pylist()
    classes = sorted_classes([*class_names, *occurring])
    number = {name: index for index, name in enumerate(classes)}
    numbers = np.array([number[name] for name in occurring], dtype=np.int32)
    return classes, numbers[encoded.indices.to_numpy(zero_copy_only=False)], starts


def _read_numbers(column: Any, key: str, origin: str) -> NDArray[np.float64]:
    """A column of finite numbers, which CSV files store as text."""
    column = normalise_column(column, origin)
    try:
        texts = pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) else column
        numbers = texts.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise DataError(
            f"{origin} has text in the column {key!r}, which holds the numbers to predict.",
            got=brief(error),
            hint="a number in every row.",
        ) from None
    wrong = np.flatnonzero(~(np.abs(numbers) <= MAX_NUMBER))  # not a number, or too large for a model
    if len(wrong):
        raise DataError(
            f"{origin} has a row without a number in the column {key!r}.",
            got=f"row {wrong[0] + 1}" + (f" and {len(wrong) - 1} more." if len(wrong) > 1 else "."),
            hint="a number in every row.",
        )
    return numbers


def _encode_splits(column: Any, origin: str) -> NDArray[np.int8]:
    encoded = _as_text(column, "split", origin).dictionary_encode()
    numbers = []
    for word in encoded.dictionary.to_pylist():
        name = SPLIT_NAMES.get(word.strip().casefold())
        if name is None:
            raise DataError(f"{origin} has an unknown split.", got=f"{word!r}.", hint=f"{', '.join(SPLITS)}.")
        numbers.append(SPLITS.index(name))
    return np.array(numbers, dtype=np.int8)[encoded.indices.to_numpy(zero_copy_only=False)]


def class_names_from_schema(schema: Any, label: str) -> list[str] | None:
    """The class names that Hugging Face `datasets` stores in a schema, if any."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    return class_names_from_features(features, label)


def class_names_from_features(features: Any, label: str) -> list[str] | None:
    """The class names of a column, or of a list column, in the features of Hugging Face `datasets`."""
    feature = features.get(label) if isinstance(features, dict) else None
    for _ in range(2):
        if isinstance(feature, list):
            feature = feature[0] if feature else None
        if isinstance(feature, dict) and isinstance(feature.get("names"), list):
            return [str(name) for name in feature["names"]]
        feature = feature.get("feature") if isinstance(feature, dict) else None
    return None


def holds_images(column: Any) -> bool:
    """Whether a column holds encoded images, as bytes or in the structs of `datasets`."""
    kind = column.type
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" for field in kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def read_image_cell(cell: Any, folder: Path, name: str) -> Content:
    """The bytes of the image in a cell, or of the file that the cell names."""
    value = cell.as_py()
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        return read_file(folder / value, name=name)
    if not isinstance(value, bytes):
        raise DataError(f"{name} holds no image.", got=f"{type(value).__name__}.", hint="removing that row.")
    return value
