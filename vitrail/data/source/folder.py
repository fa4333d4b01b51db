"""A folder of class folders: the name of a picture's folder is its label."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from vitrail.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class Sample(NamedTuple):
    """A picture's path and the name of its class."""

    path: Path
    label: str


def list_samples(root: Path) -> list[Sample]:
    """All pictures, sorted by class and name, so that the order never depends on the file system.

    Hidden files are left aside, and so is what is no plain file: a link out of the tree, a pipe, a device.
    """
    if not root.is_dir():
        hint = "unpack it first." if root.suffix.lower() in (".zip", ".tar", ".gz") else "a folder of class folders."
        raise DataError(f"{root} is not a folder.", got="a file." if root.exists() else "nothing there.", hint=hint)
    samples = []
    for folder in sorted(_visible(root)):
        if not folder.is_dir() or not folder.resolve().is_relative_to(root.resolve()):
            continue
        pictures = (path for path in sorted(_visible(folder)) if path.suffix.lower() in SUFFIXES)
        samples += [Sample(path, folder.name) for path in pictures if _is_plain(path, root)]
    if not samples:
        splits = [name for name in ("val", "test", "train") if (root / name).is_dir()]
        raise DataError(
            f"{root} has no pictures in class folders.",
            got=f"the entries {', '.join(sorted(path.name for path in _visible(root))[:5]) or 'of an empty folder'}.",
            hint=f"{root / splits[0]}." if splits else f"{root.resolve().name}/CLASS/picture.jpg.",
        )
    return samples


def _visible(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in os.scandir(folder) if not entry.name.startswith(".")]


def _is_plain(path: Path, root: Path) -> bool:
    if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
        return False
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
