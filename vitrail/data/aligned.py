"""Data with several modalities per sample: the columns of a table, or images or clips with the names of their classes.

    image,sound,text,label,split
    zero/12.png,zero/theo-3.wav,zero,zero,train

A table has at least two of the columns `image`, `video`, `sound` and `text`; paths are relative to its folder. Further
columns whose names begin with `text` are further texts for the same row. A sound may be named by the path of a video,
whose track it is. `label`, if there is one, says which rows show the same thing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.decode import read_file
from vitrail.data.find import open_data
from vitrail.data.media import modality_of
from vitrail.data.name_column import NameColumn
from vitrail.data.reader import read_content
from vitrail.data.table import NO_SPLIT, Item, Table, encode_labels, split_number
from vitrail.data.text.corpus import TABLE_SUFFIXES, checksum, read_text
from vitrail.data.text.tokenizer import Tokenizer
from vitrail.errors import DataError, brief

TEXT = "text"
COLUMNS = {"image": "image", "img": "image", "video": "video", "sound": "sound", "audio": "sound"}
ORDER = ("video", "image", "sound", TEXT)
MAX_CELL = 2**20  # characters


@dataclass(frozen=True, kw_only=True)
class AlignedTable(Table):
    """Its items are functions by modality that read its content; a modality that a row lacks has none.

    A text is a tuple of strings, because a row may have several; the others are as for one modality alone.
    """

    tokenizer: Tokenizer | None = None
    """What cuts texts, once it has been learned."""

    def texts(self, index: int) -> tuple[str, ...]:
        """The texts of a row, perhaps none."""
        read = self.content(index).get(TEXT)
        return () if read is None else read()

    def check_complete(self) -> None:
        """Refuse a table in which a row lacks a modality."""
        for index in range(len(self)):
            missing = [name for name in self.modalities if name not in self.content(index)]
            if missing:
                raise _no_part(self.names[index], missing[0])


def with_tokenizer(table: Table, tokenizer: Tokenizer | None) -> AlignedTable:
    """The same table with the tokenizer that its texts are cut by."""
    assert isinstance(table, AlignedTable)
    return replace(table, tokenizer=tokenizer)


def part_of(item: Item, modality: str) -> Any:
    """The content of one modality of an item; one that is missing is an error that names the row."""
    read = item.content().get(modality)
    if read is None:
        raise _no_part(item.name, modality)
    return read()


def _no_part(name: str, modality: str) -> DataError:
    return DataError(f"{name} has no {modality}.", got="an empty cell.", hint="filling it in.")


def read_part(item: Item, modality: str) -> Any:
    """The same; a file that cannot be read is an error that names it, too."""
    return read_content(as_part(item, modality))


def part_name(name: str, modality: str) -> str:
    """What errors call one modality of a row: the file that the row is named after, or what belongs to it."""
    return name if modality_of(name) == modality else f"the {modality} of {name}"


def as_part(item: Item, modality: str) -> Item:
    """The item as one of a single modality."""
    return replace(
        item, name=part_name(item.name, modality), content=lambda: part_of(item, modality), stamp=lambda _: ""
    )


def open_aligned(data: str | Path) -> AlignedTable:
    """Open a table with several modalities, or images or clips in class folders, whose names become texts."""
    path = Path(data)
    if path.suffix.lower() in TABLE_SUFFIXES and path.is_file():
        return _open_table(path)
    source = open_data(data)
    if not isinstance(source, Table) or source.multi_label or not source.classes:
        raise DataError(
            f"{data} has no words for its images.",
            got="shards, multi-label data, or data without classes.",
            hint="a table with the columns image and text, or class folders.",
        )
    modality, content, labels = source.modalities[0], source.content, source.labels
    texts = [(name.replace("_", " ").strip().lower(),) for name in source.classes]
    return AlignedTable(
        **{
            name: getattr(source, name)
            for name in ("origin", "names", "classes", "labels", "splits", "findings", "root")
        },
        content=lambda index: {modality: partial(content, index), TEXT: lambda: texts[labels[index]]},
        stamp=source.stamp,
        checksum=source.checksum,
        modalities=(modality, TEXT),
    )


def _open_table(path: Path) -> AlignedTable:
    header, rows = _read_rows(path)
    columns: dict[str, list[int]] = {}
    for number, name in enumerate(header):
        key = name.strip().casefold()
        modality = TEXT if key.startswith((TEXT, "caption")) else COLUMNS.get(key)
        if modality is not None:
            columns.setdefault(modality, []).append(number)
    repeated = [modality for modality, numbers in columns.items() if modality != TEXT and len(numbers) > 1]
    if len(columns) < 2 or repeated:
        raise DataError(
            f"{path} has no two modalities to align." if not repeated else f"{path} has two columns of {repeated[0]}s.",
            got=f"the columns {', '.join(header[:12])}.",
            hint="at least two of the columns image, video, sound and text.",
        )
    modalities = tuple(name for name in ORDER if name in columns)
    numbers = {name.strip().casefold(): number for number, name in enumerate(header)}
    labels = _column(rows, numbers.get("label"))
    if "" in labels:
        raise DataError(
            f"{path} has a row without a label.",
            got=f"line {labels.index('') + 2}.",
            hint="filling it in, or leaving out the column.",
        )
    classes, label_numbers = encode_labels(labels) if labels else ((), np.zeros(len(rows), dtype=np.int32))
    return AlignedTable(
        origin=str(path),
        names=NameColumn(_row_name(row, columns, modalities, number) for number, row in enumerate(rows, 2)),
        classes=classes,
        labels=label_numbers,
        splits=_read_splits(_column(rows, numbers.get("split")), len(rows), path),
        content=_reader(rows, columns, path.parent),
        checksum=checksum([",".join(row) for row in (header, *rows)]),
        root=path,
        modalities=modalities,
    )


def _reader(
    rows: Sequence[Sequence[str]], columns: dict[str, list[int]], folder: Path
) -> Callable[[int], dict[str, Callable[[], Any]]]:
    """From the number of a row to what reads its contents, by modality; an empty cell has none."""

    def find(index: int) -> dict[str, Callable[[], Any]]:
        row = rows[index]
        found = {}
        for modality, numbers in columns.items():
            cells = tuple(row[number].strip() for number in numbers if row[number].strip())
            if cells:
                found[modality] = _cell_reader(cells, modality, folder)
        return found

    return find


def _cell_reader(cells: tuple[str, ...], modality: str, folder: Path) -> Callable[[], Any]:
    """Reads an image; a clip is a path, which is opened later, and texts are the cells themselves."""
    if modality == TEXT:
        return lambda: cells
    path = folder / cells[0]
    return partial(read_file, path, name=cells[0]) if modality == "image" else lambda: path


def _row_name(row: Sequence[str], columns: dict[str, list[int]], modalities: Iterable[str], number: int) -> str:
    """The path of a row's first file, or the number of its line."""
    paths = [row[columns[modality][0]].strip() for modality in modalities if modality != TEXT]
    return next((path for path in paths if path), f"line {number}")


def _column(rows: Sequence[Sequence[str]], number: int | None) -> list[str]:
    return [] if number is None else [row[number].strip() for row in rows]


def _read_splits(words: Sequence[str], num: int, path: Path) -> np.ndarray[Any, np.dtype[np.int8]]:
    if not words:
        return np.full(num, NO_SPLIT, dtype=np.int8)
    numbers = [split_number(word) for word in words]
    if None in numbers:
        row = numbers.index(None)
        raise DataError(
            f"{path} has an unknown split.", got=f"{words[row]!r} in line {row + 2}.", hint="train, val or test."
        )
    return np.array(numbers, dtype=np.int8)


def _read_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header of a table, and its rows, all of the same length."""
    csv.field_size_limit(MAX_CELL)
    try:
        reader = csv.reader(
            io.StringIO(read_text(path), newline=""), delimiter=TABLE_SUFFIXES[path.suffix.lower()], strict=True
        )
        header, *rows = [cells for cells in reader if cells] or [[]]
    except csv.Error as error:
        raise DataError(f"{path} is not a readable table.", got=brief(error), hint="a fresh copy.") from None
    wrong = next((number for number, cells in enumerate(rows, 2) if len(cells) != len(header)), None)
    if wrong is not None:
        raise DataError(
            f"{path} has a row with another number of cells.",
            got=f"{len(rows[wrong - 2])} in line {wrong}, {len(header)} in the header.",
            hint="a cell for each column, in quotes if it has a comma.",
        )
    if not rows:
        raise DataError(f"{path} has no rows.", got="only a header.", hint="one row per sample.")
    return header, rows
