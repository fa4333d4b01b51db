"""Class folders: what the names of files say about splits and classes, in a folder, an archive or a shard alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vitrail.data.table import NO_SPLIT, SUFFIXES, Finding, split_number
from vitrail.errors import DataError

COMPANIONS = (".txt", ".md", ".json", ".xml", ".csv", ".yaml", ".yml", ".html", ".db", ".ini", ".log", ".mat")
LOOKED_AT = 10_000  # entries, to know a folder of class folders
UNFIT_NAME = "a kind of file that Vitrail does not read"
OUTSIDE = "a picture outside the class folders"
BESIDE = "a picture beside the splits"


class Place(NamedTuple):
    """Where a picture belongs, and which of the given names it has; sorts by split, class and path."""

    split: int
    label: str
    parts: tuple[str, ...]
    name: str


def is_image_name(name: str) -> bool:
    """Whether a file is called like a picture; whether it is one, its content tells."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def is_companion(name: str) -> bool:
    """Whether a file is of the kind that lies beside pictures in most sets, and that nobody misses."""
    return PurePosixPath(name).suffix.lower() in COMPANIONS


def has_class_folders(root: Path) -> bool:
    """Whether pictures lie in folders below the root, or in its splits: archives beside them are then not the data."""
    found = (path for depth in ("*/*", "*/*/*") for path in islice(root.glob(depth), LOOKED_AT))
    return any(is_image_name(path.name) for path in found)


def arrange(names: Sequence[str], origin: str, aside: Sequence[Finding] = ()) -> tuple[list[Place], list[Finding]]:
    """Pictures sorted by split, class and path, so that the order never depends on the file system.

    A class is the first folder below the root, or below a split. One folder around all others is looked through. What
    was set `aside` before is told if nothing else is there.
    """
    split_up = [(tuple(name.split("/")), name) for name in names]
    tops = {parts[0] for parts, _ in split_up if len(parts) > 1}
    inner = {parts[1] for parts, _ in split_up if len(parts) > 2}
    around = len(inner) > 1 or all(len(parts) > 2 for parts, _ in split_up)
    if len(tops) == 1 and around and split_number(next(iter(tops))) is None:
        split_up = [(parts[1:] if len(parts) > 1 else parts, name) for parts, name in split_up]
    splits = _splits([parts for parts, _ in split_up])
    places, left = [], []
    for parts, name in split_up:
        if splits and parts[0] not in splits:
            left.append(Finding(name, "ignored", BESIDE))
        elif len(parts) < (3 if splits else 2):
            left.append(Finding(name, "ignored", OUTSIDE))
        else:
            label = parts[1] if splits else parts[0]
            places.append(Place(splits.get(parts[0], NO_SPLIT), label, parts, name))
    if not places:
        shown = ", ".join(sorted({name.partition("/")[0] for name in names})[:5])
        got = f"pictures in {shown}." if shown else "no file with the name of a picture."
        if aside:
            got += f" {len(aside)} set aside, such as {aside[0].path}: {aside[0].detail}."
        raise DataError(
            f"{origin} has no pictures in class folders.",
            got=got,
            hint="CLASS/picture.jpg, or train/CLASS/picture.jpg, in it.",
        )
    return sorted(places), left


def _splits(paths: list[tuple[str, ...]]) -> dict[str, int]:
    """The top folders that are splits, if that is how the set is laid out: two of them, or no other folder."""
    tops = {parts[0] for parts in paths if len(parts) > 1}
    named = {top: number for top in tops if (number := split_number(top)) is not None}
    deep = any(len(parts) > 2 and parts[0] in named for parts in paths)
    return named if deep and (len(named) > 1 or len(named) == len(tops)) else {}
