"""Finds images, or clips, in whatever the user names (files, folders, patterns, zips, a pipe), one at a time."""

from __future__ import annotations

import glob
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from vitrail.data.decode import JPEG_START, MAX_BYTES, read_file, too_large
from vitrail.data.media import modality_of
from vitrail.data.name_column import NameColumn
from vitrail.data.source import zip_archive
from vitrail.data.table import NO_SPLIT, Table
from vitrail.errors import DataError, brief

PIPE = "-"
STARTS = (JPEG_START, b"\x89PNG", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*")  # of image files


class ImageFile(NamedTuple):
    """An image or a clip that was named or found; its content is read on demand."""

    name: str
    content: Callable[[], Any]
    """Bytes; of a clip, the path."""


def find_images(words: Iterable[str], *, pipe: BinaryIO | None = None, modality: str = "image") -> Iterator[ImageFile]:
    """The images that the words name, lazily and in a fixed order; with another `modality`, the clips.

    A named file is tried whatever its suffix; in a folder or zip only files with a suffix of the modality are. A path
    that does not exist becomes an image that cannot be read.
    """
    for word in words:
        if word == PIPE:
            yield from _from_pipe(pipe or sys.stdin.buffer, modality)
        elif Path(word).is_dir():
            yield from _from_folder(Path(word), modality)
        elif zip_archive.recognise(word):
            yield from _from_zip(word, modality)
        elif glob.has_magic(word) and not Path(word).exists():
            names = sorted(glob.glob(word, recursive=True))  # noqa: PTH207 - a pattern may be absolute
            if not names:
                raise DataError(f"no file matches {word}.", got="a pattern without matches.", hint="another pattern.")
            for name in names:
                yield from _from_folder(Path(name), modality) if Path(name).is_dir() else [_from_file(name, modality)]
        else:
            yield _from_file(word, modality)


def as_table(images: Sequence[ImageFile], origin: str, root: Path | None = None) -> Table:
    """Images without labels as a table."""
    names = NameColumn(image.name for image in images)
    return _unlabelled(origin, names, lambda index: images[index].content(), root)


def folder_table(root: Path) -> Table:
    """All images below a folder, without labels; only their names are kept in memory."""
    names = NameColumn(os.path.relpath(image.name, root) for image in _from_folder(root))
    return _unlabelled(str(root), names, lambda index: _from_file(str(root / names[index])).content(), root)


def _unlabelled(origin: str, names: NameColumn, content: Callable[[int], bytes], root: Path | None) -> Table:
    return Table(
        origin=origin,
        names=names,
        classes=("",),
        labels=np.zeros(len(names), dtype=np.int32),
        splits=np.full(len(names), NO_SPLIT, dtype=np.int8),
        content=content,
        root=root,
    )


def _from_file(name: str, modality: str = "image") -> ImageFile:
    if modality != "image":
        return ImageFile(name, lambda: Path(name))  # whose reader checks it

    def content() -> bytes:
        try:
            return read_file(name)
        except (OSError, ValueError) as error:  # ValueError: a null byte in the name
            got = error.strerror if isinstance(error, OSError) else str(error)
            raise DataError(f"{name} cannot be read.", got=f"{got}.", hint="the path of an image.") from None

    return ImageFile(name, content)


def _from_folder(root: Path, modality: str = "image") -> Iterator[ImageFile]:
    num = 0
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        start = "" if folder == "." else folder
        for name in sorted(names):
            if modality_of(name) == modality and not name.startswith("."):
                num += 1
                path = os.path.join(start, name)  # noqa: PTH118 - path objects would intern all names
                yield _from_file(path, modality)
    if not num:
        raise DataError(f"there are no {modality}s in {root}.", got="a folder without any.", hint="another folder.")


def _from_zip(path: str, modality: str) -> Iterator[ImageFile]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DataError(f"{path} is not a complete zip file.", got=brief(error), hint="a fresh copy.") from None
    members, _ = zip_archive.list_members(archive)  # stays open, since the images are read later
    infos = {name: info for name, info in members.items() if modality_of(name) == modality}
    if not infos:
        raise DataError(f"there are no {modality}s in {path}.", got="a zip without any.", hint="another zip.")
    for name, info in infos.items():
        yield ImageFile(f"{path}/{name}", partial(zip_archive.read_member, archive, info))


def _from_pipe(pipe: BinaryIO, modality: str) -> Iterator[ImageFile]:
    """Either an image itself, or the paths of images, one per line."""
    start = pipe.peek(16) if hasattr(pipe, "peek") else b""
    if modality == "image" and start.startswith(STARTS):
        content = pipe.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise too_large("standard input", f"more than {MAX_BYTES // 2**20} MiB")
        yield ImageFile("standard input", lambda: content)
        return
    for line in pipe:
        name = os.fsdecode(line.rstrip(b"\r\n"))
        if name:
            yield _from_file(name, modality)
