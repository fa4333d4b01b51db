"""What every source provides: its images as columns, labels with class names, and access to each image's content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.name_column import NameColumn
from vitrail.errors import DataError

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "train_set", "training_set", "trainset"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "val_set", "validation_set", "valset"), "val"),
    **dict.fromkeys(("test", "testing", "test_set", "testing_set", "testset"), "test"),
}
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
SOUND_SUFFIXES = (".wav", ".flac")
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg")
NO_SPLIT = -1
MAX_NUMBER = float(np.finfo(np.float32).max)
IMAGE = ("image",)
Content = Any
"""What the preparation of its modality reads: an encoded image or its pixels, the file of a clip, a text, token ids.

Of data with several modalities, all of them by name.
"""


class Finding(NamedTuple):
    """A problem with the data: the path, the kind, the details, and the other image involved, if any."""

    path: str
    kind: str
    detail: str
    other: str = ""


def no_stamp(_: int) -> str:
    """For sources without a cheap way to detect changes, or with nothing to decode."""
    return ""


@dataclass(frozen=True, slots=True)
class Item:
    """One sample of a source."""

    index: int
    name: str
    labels: tuple[int, ...]
    content: Callable[[], Content]
    stamp: Callable[[int], str]
    """From its index to a string that changes whenever the content does; empty if there is no cheap one."""
    value: float | None = None
    """The number to predict, for regression."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The images of a source with random access."""

    origin: str
    names: Sequence[str]
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    """Class numbers, concatenated over all images."""
    starts: NDArray[np.int64] | None = None
    """Multi-label data only: where each image's labels start, and where the last ones end."""
    targets: NDArray[np.float32] | None = None
    """Soft labels: the probability of each class for each image; `labels` are the most likely ones."""
    values: NDArray[np.float64] | None = None
    """Regression only: the number to predict for each image."""
    splits: NDArray[np.int8]
    content: Callable[[int], Content]
    stamp: Callable[[int], str] = no_stamp
    findings: tuple[Finding, ...] = ()
    """Problems met while opening: files that are not images of this source."""
    root: Path | None = None
    """The folder or file that was opened; nothing may be written there."""
    checksum: str = ""
    """A hash of all contents, for sources that are read as a whole."""
    modalities: tuple[str, ...] = IMAGE
    """What each sample consists of: `image`, `sound`, `video`, `text`; several for data that is to be aligned."""

    def __post_init__(self) -> None:
        if isinstance(self.names, list | tuple):  # other sequences hold no string per name either
            object.__setattr__(self, "names", NameColumn(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < len(self):
            raise IndexError(index)
        value = None if self.values is None else float(self.values[index])
        return Item(index, self.names[index], self.labels_of(index), partial(self.content, index), self.stamp, value)

    def __iter__(self) -> Iterator[Item]:
        return (self[index] for index in range(len(self)))

    @property
    def multi_label(self) -> bool:
        """Whether an image may have any number of labels."""
        return self.starts is not None

    @property
    def kind(self) -> str:
        """The kind of run that this data is for, unless the recipe says another."""
        if self.values is not None:
            return "regression"
        return "classification" if self.modalities == IMAGE else "clips"

    @property
    def num_outputs(self) -> int:
        """The number of outputs of a model for this data: one per class; one for a number to predict."""
        return len(self.classes) if self.values is None else 1

    def labels_of(self, index: int) -> tuple[int, ...]:
        """The class numbers of one image; none without classes."""
        if not self.classes:
            return ()
        if self.starts is None:
            return (int(self.labels[index]),)
        return tuple(self.labels[self.starts[index] : self.starts[index + 1]].tolist())

    def label_names(self, index: int) -> tuple[str, ...]:
        """The class names of one image."""
        return tuple(self.classes[label] for label in self.labels_of(index))

    @property
    def split_names(self) -> tuple[str, ...]:
        """The source's own splits, in the order train, val, test."""
        present = set(np.unique(self.splits).tolist())
        return tuple(name for number, name in enumerate(SPLITS) if number in present)

    def as_numbers(self) -> Table:
        """The same data for regression: each image's class name is the number to predict."""
        if self.multi_label or not self.classes:
            raise DataError("regression needs one number per image.", got="multi-label or unlabelled data.")
        numbers = [parse_number(name) for name in self.classes]
        wrong = [name for name, number in zip(self.classes, numbers, strict=True) if number is None]
        if wrong:
            raise DataError(
                f"{self.origin} has classes that are not numbers.",
                got=", ".join(map(repr, wrong[:5])) + (f" and {len(wrong) - 5} more." if wrong[5:] else "."),
                hint="a table with a numeric column, or no --target.",
            )
        values = np.array(numbers, dtype=np.float64)[self.labels]
        return replace(self, classes=(), labels=np.zeros(len(self), dtype=np.int32), values=values)

    def only(self, rows: Iterable[int]) -> Table:
        """The same source restricted to these rows; the classes stay."""
        chosen = np.fromiter(rows, dtype=np.int64)
        names, content, stamp = self.names, self.content, self.stamp
        labels, starts = self.labels[chosen] if self.starts is None else self.labels, None
        if self.starts is not None:
            counts = self.starts[chosen + 1] - self.starts[chosen]
            starts = np.concatenate([[0], np.cumsum(counts)])
            labels = np.concatenate(
                [self.labels[:0], *(self.labels[self.starts[row] : self.starts[row + 1]] for row in chosen)]
            )
        return replace(
            self,
            names=NameColumn(names[row] for row in chosen),
            labels=labels,
            starts=starts,
            targets=None if self.targets is None else self.targets[chosen],
            values=None if self.values is None else self.values[chosen],
            splits=self.splits[chosen],
            content=lambda index: content(int(chosen[index])),
            stamp=lambda index: stamp(int(chosen[index])),
        )

    def split(self, name: str) -> Table:
        """The images of one split."""
        check_split(name, self.split_names, self.origin)
        return self.only(np.flatnonzero(self.splits == SPLITS.index(name)))


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The images of a source that can only be read in sequence, shard by shard."""

    origin: str
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    """The number of images in each shard."""
    splits: tuple[int, ...]
    """The split of each shard."""
    items: Callable[[int], Iterator[Item]]
    """From the number of a shard to its images."""
    shards: tuple[int, ...] | None = None
    """The numbers of the shards to read; None for all of them."""
    findings: tuple[Finding, ...] = ()
    root: Path | None = None
    values: None = None
    multi_label: bool = False
    kind: str = "classification"
    modalities: tuple[str, ...] = IMAGE

    @property
    def num_outputs(self) -> int:
        """The number of outputs of a model for this data: one per class."""
        return len(self.classes)

    @property
    def chosen(self) -> tuple[int, ...]:
        """The numbers of the shards to read."""
        return tuple(range(len(self.counts))) if self.shards is None else self.shards

    def __len__(self) -> int:
        return sum(self.counts[shard] for shard in self.chosen)

    def __iter__(self) -> Iterator[Item]:
        return self.in_order(self.chosen)

    def in_order(self, shards: Iterable[int]) -> Iterator[Item]:
        """The images of these shards, one shard after the other."""
        for shard in shards:
            yield from self.items(shard)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that the shards belong to."""
        return tuple(name for number, name in enumerate(SPLITS) if number in self.splits)

    def split(self, name: str) -> Stream:
        """The shards of one split."""
        check_split(name, self.split_names, self.origin)
        chosen = (shard for shard in self.chosen if self.splits[shard] == SPLITS.index(name))
        return replace(self, shards=tuple(chosen))


Source = Table | Stream


def parse_number(text: str) -> float | None:
    """A number that float32 can hold; None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) <= MAX_NUMBER else None


def check_split(name: str, splits: tuple[str, ...], origin: str) -> None:
    """Refuse a split that does not exist."""
    if name not in splits:
        listed = ", ".join(splits)
        raise DataError(
            f"{origin} has no split {name!r}.",
            got=f"data with the splits {listed}." if listed else "data without splits.",
            hint="" if listed else "adding folders train, val and test, or leaving out the split.",
        )


def split_number(word: str) -> int | None:
    """The number of the split with this name, by any of its usual spellings; None if it is not one."""
    name = SPLIT_NAMES.get(word.strip().casefold())
    return None if name is None else SPLITS.index(name)


def sorted_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Class names in the order common to all layouts: by number if all are numbers, else by name."""
    distinct = set(names)
    if all(name.isascii() and name.isdecimal() for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def check_names(names: Sequence[str], origin: str) -> None:
    """Refuse duplicate class names: two classes would become one."""
    duplicates = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if duplicates:
        raise DataError(
            f"{origin} has two classes with the same name.",
            got=f"{', '.join(duplicates[:5])}.",
            hint="a unique name for each class.",
        )


def encode_labels(names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """The classes, and the class number of each image."""
    classes = sorted_classes(names)
    number = {name: index for index, name in enumerate(classes)}
    return classes, np.fromiter((number[name] for name in names), dtype=np.int32, count=len(names))
