"""What every source gives: its pictures in columns, their labels by name, and a way to each one's content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import Pixels
from vitrail.errors import DataError

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "train_set", "training_set", "trainset"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "val_set", "validation_set", "valset"), "val"),
    **dict.fromkeys(("test", "testing", "test_set", "testing_set", "testset"), "test"),
}
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
NO_SPLIT = -1
Content = bytes | Pixels
"""A picture as it is stored: an encoded file, or the pixels of an array."""


class Finding(NamedTuple):
    """Something that a user should know of their data: where, what kind, what exactly, and what else it concerns."""

    path: str
    kind: str
    detail: str
    other: str = ""


def no_stamp(_: int) -> str:
    """For sources that have nothing cheap to tell a change by, or nothing to decode."""
    return ""


@dataclass(frozen=True, slots=True)
class Item:
    """One picture on its way to a batch."""

    index: int
    name: str
    labels: tuple[int, ...]
    content: Callable[[], Content]
    stamp: Callable[[int], str]
    """Of its index: a word that changes whenever the content does; empty if nothing cheap does."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The pictures of a source that can be reached in any order."""

    origin: str
    names: Sequence[str]
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    """Class numbers, those of one picture after those of the one before."""
    starts: NDArray[np.int64] | None = None
    """Where each picture's labels start, and the last ones end; None if each has one."""
    splits: NDArray[np.int8]
    content: Callable[[int], Content]
    stamp: Callable[[int], str] = no_stamp
    aside: tuple[Finding, ...] = ()
    """What was found but cannot be a picture of this source."""
    root: Path | None = None
    """The folder or file that it was read from, into which nothing may be written."""

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Item(index, self.names[index], self.labels_of(index), partial(self.content, index), self.stamp)

    def __iter__(self) -> Iterator[Item]:
        return (self[index] for index in range(len(self)))

    def labels_of(self, index: int) -> tuple[int, ...]:
        """The class numbers of one picture."""
        if self.starts is None:
            return (int(self.labels[index]),)
        return tuple(self.labels[self.starts[index] : self.starts[index + 1]].tolist())

    def label_names(self, index: int) -> tuple[str, ...]:
        """The class names of one picture."""
        return tuple(self.classes[label] for label in self.labels_of(index))

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that the source itself has, in the order train, val, test."""
        present = set(np.unique(self.splits).tolist())
        return tuple(name for number, name in enumerate(SPLITS) if number in present)

    def only(self, rows: Iterable[int]) -> Table:
        """The same source with these pictures alone; the classes stay."""
        chosen = np.fromiter(rows, dtype=np.int64)
        names, content, stamp = self.names, self.content, self.stamp
        labels, starts = self.labels[chosen] if self.starts is None else self.labels, None
        if self.starts is not None:
            counts = self.starts[chosen + 1] - self.starts[chosen]
            starts = np.concatenate([[0], np.cumsum(counts)])
            labels = np.concatenate(
                [self.labels[self.starts[row] : self.starts[row + 1]] for row in chosen] or [labels]
            )
        return replace(
            self,
            names=[names[row] for row in chosen.tolist()],
            labels=labels,
            starts=starts,
            splits=self.splits[chosen],
            content=lambda index: content(int(chosen[index])),
            stamp=lambda index: stamp(int(chosen[index])),
        )

    def split(self, name: str) -> Table:
        """The pictures of one split."""
        check_split(name, self.split_names, self.origin)
        return self.only(np.flatnonzero(self.splits == SPLITS.index(name)))


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The pictures of a source that can only be read one after the other, shard by shard."""

    origin: str
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    """The number of pictures in each shard."""
    splits: tuple[int, ...]
    """The split of each shard."""
    pictures: Callable[[int], Iterator[Item]]
    """The pictures of a shard by its number."""
    shards: tuple[int, ...] | None = None
    """The numbers of the shards that are read; None for all of them."""
    aside: tuple[Finding, ...] = ()
    root: Path | None = None

    @property
    def chosen(self) -> tuple[int, ...]:
        """The numbers of the shards that are read."""
        return tuple(range(len(self.counts))) if self.shards is None else self.shards

    def __len__(self) -> int:
        return sum(self.counts[shard] for shard in self.chosen)

    def __iter__(self) -> Iterator[Item]:
        return self.in_order(self.chosen)

    def in_order(self, shards: Iterable[int]) -> Iterator[Item]:
        """The pictures of these shards, one shard after the other."""
        for shard in shards:
            yield from self.pictures(shard)

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


def check_split(name: str, has: tuple[str, ...], origin: str) -> None:
    """Refuse a split that is not there."""
    if name not in has:
        listed = ", ".join(has)
        raise DataError(
            f"{origin} has no split {name!r}.",
            got=f"the splits {listed}." if listed else "one set without splits.",
            hint=f"{listed}." if listed else "folders train, val and test in it, or no split.",
        )


def split_number(word: str) -> int | None:
    """The number of a split that is called so; None if no split is."""
    name = SPLIT_NAMES.get(word.strip().casefold())
    return None if name is None else SPLITS.index(name)


def sorted_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Class names in the one order that every layout has: by number if all of them are numbers, else by name."""
    distinct = set(names)
    if all(name.isascii() and name.isdecimal() for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def check_names(names: Sequence[str], origin: str) -> None:
    """Refuse a list of class names in which one stands twice: two classes would become one."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise DataError(
            f"{origin} has two classes of one name.", got=f"{', '.join(twice[:5])}.", hint="a name of its own for each."
        )


def numbered(names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """The classes, and each picture's class number."""
    classes = sorted_classes(names)
    number = {name: index for index, name in enumerate(classes)}
    return classes, np.fromiter((number[name] for name in names), dtype=np.int32, count=len(names))
