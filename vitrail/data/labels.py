"""Labels bound by name, never by order: which class of a model does a folder mean?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from vitrail.errors import DataError, unknown_name

NUM_IMAGENET = 1000


class ImageNetClass(NamedTuple):
    """One class of ImageNet-1k."""

    number: int
    wnid: str
    name: str
    others: tuple[str, ...]


@cache
def imagenet_classes() -> tuple[ImageNetClass, ...]:
    """The classes of ImageNet-1k in their usual order."""
    lines = files("vitrail.data").joinpath("imagenet_classes.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return tuple(
        ImageNetClass(number, wnid, name, tuple(filter(None, others.split("; "))))
        for number, (wnid, name, others) in enumerate(rows)
    )


def bind(folders: Iterable[str], num_classes: int) -> dict[str, int]:
    """The class index that each folder's name means to a model with this many classes.

    A number is an index. For 1,000 classes, a WordNet id or a class name of ImageNet works too.
    """
    bound = {folder: _index(folder, num_classes) for folder in folders}
    meant: dict[int, list[str]] = defaultdict(list)
    for folder, index in bound.items():
        meant[index].append(folder)
    for index, same in meant.items():
        if len(same) > 1:
            raise DataError(
                "two folders mean the same class.",
                got=f"{', '.join(map(repr, same))} for class {index}.",
                hint="merge them.",
            )
    return bound


def _index(folder: str, num_classes: int) -> int:
    if re.fullmatch(r"[0-9]+", folder):
        if int(folder) < num_classes:
            return int(folder)
        raise DataError(
            f"folder {folder!r} is no class index of this model.",
            got=f"{num_classes} classes.",
            hint=f"0 to {num_classes - 1}.",
        )
    if num_classes != NUM_IMAGENET:
        raise DataError(
            f"folder {folder!r} cannot be bound to a class: the model carries no labels.",
            got=f"a model with {num_classes} classes.",
            hint=f"folders named by class index, 0 to {num_classes - 1}.",
        )
    for table in _tables():
        found = table.get(_plain(folder), ())
        if len(found) == 1:
            return found[0].number
        if found:
            meanings = ", ".join(f"{each.wnid} ({each.name})" for each in found)
            raise DataError(
                f"the class name {folder!r} is ambiguous.", got=f"{meanings}.", hint="the WordNet id as name."
            )
    raise unknown_name("ImageNet class", folder, (each.name for each in imagenet_classes()))


@cache
def _tables() -> tuple[dict[str, list[ImageNetClass]], ...]:
    """Classes by WordNet id, by first name and by other names; the first table that knows a name decides."""
    ids: dict[str, list[ImageNetClass]] = defaultdict(list)
    names: dict[str, list[ImageNetClass]] = defaultdict(list)
    others: dict[str, list[ImageNetClass]] = defaultdict(list)
    for each in imagenet_classes():
        ids[each.wnid].append(each)
        names[_plain(each.name)].append(each)
        for other in each.others:
            others[_plain(other)].append(each)
    return ids, names, others


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()
