"""Maps folder names to the classes of a model: by name, never by order."""

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
    """The class index of each folder, by its name, for a model with this many classes.

    A number is an index. With 1,000 classes, a WordNet ID or an ImageNet class name works too.
    """
    bound = {folder: _index(folder, num_classes) for folder in folders}
    folders_of: dict[int, list[str]] = defaultdict(list)
    for folder, index in bound.items():
        folders_of[index].append(folder)
    for index, same in folders_of.items():
        if len(same) > 1:
            raise DataError(
                "two folders mean the same class.",
                got=f"{', '.join(map(repr, same))} for class {index}.",
                hint="merging them.",
            )
    return bound


def _index(folder: str, num_classes: int) -> int:
    if re.fullmatch(r"[0-9]+", folder):
        if int(folder) < num_classes:
            return int(folder)
        raise DataError(
            f"folder {folder!r} is not a class index of this model.",
            got=f"{num_classes} classes.",
            hint=f"a folder name from 0 to {num_classes - 1}.",
        )
    if num_classes != NUM_IMAGENET:
        raise DataError(
            f"folder {folder!r} cannot be matched to a class: the model has no class names.",
            got=f"a model with {num_classes} classes.",
            hint=f"folders named by class index, 0 to {num_classes - 1}.",
        )
    for table, normalise in zip(_tables(), (_spaced, _spaced, _spaced, _folded, _folded), strict=True):
        found = table.get(normalise(folder), {})
        if len(found) == 1:
            return next(iter(found))
        if found:
            meanings = ", ".join(f"{each.wnid} ({each.name})" for each in found.values())
            raise DataError(
                f"the class name {folder!r} is ambiguous.",
                got=f"{meanings}.",
                hint="the WordNet ID as the folder name.",
            )
    raise unknown_name("ImageNet class", folder, (each.name for each in imagenet_classes()))


@cache
def _tables() -> tuple[dict[str, dict[int, ImageNetClass]], ...]:
    """Classes by WordNet ID, by first name and by other names, then by both ignoring case; the first match wins.

    Case matters at first, because a Cardigan is a dog and a cardigan is not.
    """
    ids, names, others, folded_names, folded_others = (
        defaultdict[str, dict[int, ImageNetClass]](dict) for _ in range(5)
    )
    for each in imagenet_classes():
        ids[each.wnid][each.number] = each
        names[_spaced(each.name)][each.number] = each
        folded_names[_folded(each.name)][each.number] = each
        for other in each.others:
            others[_spaced(other)][each.number] = each
            folded_others[_folded(other)][each.number] = each
    return ids, names, others, folded_names, folded_others


def _spaced(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip()


def _folded(name: str) -> str:
    return _spaced(name).casefold()
