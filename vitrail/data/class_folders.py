"""Class folders: splits and classes from file names, in a folder, an archive or a shard alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from posixpath import splitext
from typing import NamedTuple

from vitrail.data.media import modality_of
from vitrail.data.table import NO_SPLIT, SUFFIXES, Finding, split_number
from vitrail.errors import DataError

COMPANIONS = (".txt", ".md", ".json", ".xml", ".csv", ".yaml", ".yml", ".html", ".db", ".ini", ".log", ".mat")
MAX_ENTRIES = 10_000  # read to recognise class folders
UNSUPPORTED = "a file type that Vitrail does not read"
OUTSIDE_CLASSES = "outside the class folders"
OUTSIDE_SPLITS = "outside the split folders"
EXAMPLES = {"image": "image.jpg", "sound": "sound.wav", "video": "video.mp4"}


class Place(NamedTuple):
    """The split, class and path of an image, and its original name; sorts in this order."""

    split: int
    label: str
    parts: tuple[str, ...]
    name: str


def is_image_name(name: str) -> bool:
    """Whether a file has an image suffix; its content decides whether it is one."""
    return splitext(name)[1].lower() in SUFFIXES  # path objects would intern all names


def one_modality(names: Iterable[str]) -> tuple[str, list[str], list[Finding]]:
    """The modality that most files have, its files, and findings about the others, which are not read."""
    by_modality: dict[str, list[str]] = {"image": []}
    for name in names:
        by_modality.setdefault(modality_of(name) or "image", []).append(name)
    counts = Counter({modality: len(found) for modality, found in by_modality.items()})
    chosen = counts.most_common(1)[0][0]
    others = [
        Finding(name, "ignored", f"{'an' if modality == 'image' else 'a'} {modality} among {chosen}s")
        for modality, found in by_modality.items()
        if modality != chosen
        for name in found
    ]
    return chosen, by_modality[chosen], others


def is_companion(name: str) -> bool:
    """Whether a file is of a type that often accompanies images (notes, annotations), not worth a finding."""
    return splitext(name)[1].lower() in COMPANIONS


def has_class_folders(root: Path) -> bool:
    """Whether there are images or clips in class folders, with or without splits; archives beside them are ignored."""
    found = (path for depth in ("*/*", "*/*/*") for path in islice(root.glob(depth), MAX_ENTRIES))
    return any(modality_of(path.name) is not None for path in found)


def arrange(
    names: Sequence[str], origin: str, findings: Sequence[Finding] = (), modality: str = "image"
) -> tuple[list[Place], list[Finding]]:
    """Images or clips sorted by split, class and path, so that the order never depends on the file system.

    A class is the first folder below the root, or below a split. A single outer folder does not count.
    Earlier `findings` are mentioned in the error if there are no images; new ones are returned.
    """
    split_up = [(tuple(name.split("/")), name) for name in names]
    tops = {parts[0] for parts, _ in split_up if len(parts) > 1}
    inner = {parts[1] for parts, _ in split_up if len(parts) > 2}
    wrapped = len(inner) > 1 or all(len(parts) > 2 for parts, _ in split_up)
    if len(tops) == 1 and wrapped and split_number(next(iter(tops))) is None:
        split_up = [(parts[1:] if len(parts) > 1 else parts, name) for parts, name in split_up]
    splits = _splits([parts for parts, _ in split_up])
    places, ignored = [], []
    for parts, name in split_up:
        if splits and parts[0] not in splits:
            ignored.append(Finding(name, "ignored", OUTSIDE_SPLITS))
        elif len(parts) < (3 if splits else 2):
            ignored.append(Finding(name, "ignored", OUTSIDE_CLASSES))
        else:
            label = parts[1] if splits else parts[0]
            places.append(Place(splits.get(parts[0], NO_SPLIT), label, parts, name))
    if not places:
        shown = ", ".join(sorted({name.partition("/")[0] for name in names})[:5])
        got = f"{modality}s in {shown}." if shown else "no file with the suffix of an image, a sound or a video."
        if findings:
            got += f" {len(findings)} skipped, such as {findings[0].path}: {findings[0].detail}."
        raise DataError(
            f"{origin} has no {modality}s in class folders.",
            got=got,
            hint="CLASS/{0} or train/CLASS/{0} inside it.".format(EXAMPLES[modality]),
        )
    return sorted(places), ignored


def _splits(paths: list[tuple[str, ...]]) -> dict[str, int]:
    """The top folders that are splits, if there are two of them or no other folders; otherwise they are classes."""
    tops = {parts[0] for parts in paths if len(parts) > 1}
    named = {top: number for top in tops if (number := split_number(top)) is not None}
    deep = any(len(parts) > 2 and parts[0] in named for parts in paths)
    return named if deep and (len(named) > 1 or len(named) == len(tops)) else {}
