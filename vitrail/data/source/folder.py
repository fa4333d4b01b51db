"""A folder of class folders, with or without folders for train, val and test above them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np

from vitrail.data.class_folders import UNFIT_NAME, arrange, is_companion, is_image_name
from vitrail.data.decode import file_stamp, read_file
from vitrail.data.table import Finding, Table, numbered

OUT = "a link out of the folder, to"
ASTRAY = "a link that leads nowhere, or in a circle"
TO_FOLDER = "a link to a folder, which is not followed"
SPECIAL = "a pipe, socket or device, which is never opened"


def recognise(word: str) -> bool:
    """Any folder: the finder asks this source last."""
    return Path(word).is_dir()


def open_source(word: str) -> Table:
    """All pictures below the folder; what is none is left aside and named, hidden files are none of our business."""
    root = Path(word)
    names, aside = _walk(root)
    places, more = arrange(names, str(root), aside)
    classes, labels = numbered([place.label for place in places])
    kept = [place.name for place in places]
    return Table(
        origin=str(root),
        names=kept,
        classes=classes,
        labels=labels,
        splits=np.array([place.split for place in places], dtype=np.int8),
        content=lambda index: read_file(root / kept[index], name=kept[index]),
        stamp=lambda index: file_stamp(root / kept[index]),
        aside=(*aside, *more),
        root=root,
    )


def _walk(root: Path) -> tuple[list[str], list[Finding]]:
    """The files called like pictures, by their names from the root, and what else was met."""
    inside = root.resolve()
    names: list[str] = []
    aside: list[Finding] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(root / folder))
        except OSError as error:
            if not folder:
                raise
            aside.append(Finding(folder, "unreadable", error.strerror or str(error)))
            continue
        entries = [entry for entry in entries if not entry.name.startswith(".")]
        if folder and not entries:
            aside.append(Finding(folder, "ignored", "an empty folder"))
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            found = _look(Path(entry.path), inside)
            if isinstance(found, tuple):
                aside.append(Finding(name, *found))
            elif found == "folder":
                waiting.append(name)
            elif is_image_name(name):
                names.append(name)
            elif not is_companion(name) and "." in entry.name:
                aside.append(Finding(name, "ignored", UNFIT_NAME))
    return names, aside


def _look(path: Path, inside: Path) -> str | tuple[str, str]:
    """`file`, `folder`, or why it is neither: the kind of a finding and its detail. Opens nothing."""
    try:
        linked = path.is_symlink()
        real = path.resolve(strict=True) if linked else path
        if linked and not real.is_relative_to(inside):
            return "link", f"{OUT} {real}"
        mode = path.stat().st_mode
    except (OSError, RuntimeError):
        return "link", ASTRAY
    if stat.S_ISREG(mode):
        return "file"
    if not stat.S_ISDIR(mode):
        return "special", SPECIAL
    return ("link", TO_FOLDER) if linked else "folder"
