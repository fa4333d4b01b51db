"""Pictures to be looked at, one after the other, from whatever a user names: files, folders, patterns, zips, a pipe."""

from __future__ import annotations

import glob
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from vitrail.data.class_folders import is_image_name
from vitrail.data.decode import JPEG_START, MAX_BYTES, read_file, too_large
from vitrail.data.source import zipped
from vitrail.data.table import NO_SPLIT, Table
from vitrail.errors import DataError, brief

PIPE = "-"
STARTS = (JPEG_START, b"\x89PNG", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*")  # of pictures


class Found(NamedTuple):
    """A picture that was named, or found."""

    name: str
    content: Callable[[], bytes]


def find_images(words: Iterable[str], *, pipe: BinaryIO | None = None) -> Iterator[Found]:
    """The pictures that words lead to, in a fixed order and never all at once.

    A file that was named is tried whatever its name is; of a folder or a zip those that are called like pictures. What
    leads nowhere is a picture that cannot be read.
    """
    for word in words:
        if word == PIPE:
            yield from _piped(pipe or sys.stdin.buffer)
        elif Path(word).is_dir():
            yield from _of_folder(Path(word))
        elif zipped.recognise(word):
            yield from _of_zip(word)
        elif glob.has_magic(word) and not Path(word).exists():
            names = sorted(glob.glob(word, recursive=True))  # noqa: PTH207 - a pattern may be absolute
            if not names:
                raise DataError(
                    f"no file is called like {word}.", got="a pattern that matches nothing.", hint="another pattern."
                )
            for name in names:
                yield from _of_folder(Path(name)) if Path(name).is_dir() else [_of_file(name)]
        else:
            yield _of_file(word)


def as_table(found: Sequence[Found], origin: str) -> Table:
    """Pictures without labels as a table."""
    return Table(
        origin=origin,
        names=[each.name for each in found],
        classes=("",),
        labels=np.zeros(len(found), dtype=np.int32),
        splits=np.full(len(found), NO_SPLIT, dtype=np.int8),
        content=lambda index: found[index].content(),
    )


def _of_file(name: str) -> Found:
    def content() -> bytes:
        try:
            return read_file(name)
        except (OSError, ValueError) as error:  # a name may hold a zero
            got = error.strerror if isinstance(error, OSError) else str(error)
            raise DataError(f"{name} cannot be read.", got=f"{got}.", hint="the path of a picture.") from None

    return Found(name, content)


def _of_folder(root: Path) -> Iterator[Found]:
    num = 0
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            if is_image_name(name) and not name.startswith("."):
                num += 1
                yield _of_file(str(Path(folder) / name))
    if not num:
        raise DataError(f"there are no pictures in {root}.", got="a folder without any.", hint="another folder.")


def _of_zip(path: str) -> Iterator[Found]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DataError(f"{path} is no whole zip.", got=brief(error), hint="a new copy.") from None
    infos, _ = zipped.members(archive)  # it stays open: what is found is read later
    if not infos:
        raise DataError(f"there are no pictures in {path}.", got="a zip without any.", hint="another zip.")
    for name, info in infos.items():
        yield Found(f"{path}/{name}", partial(zipped.read_member, archive, info))


def _piped(pipe: BinaryIO) -> Iterator[Found]:
    """A picture itself, or the names of pictures, one a line."""
    start = pipe.peek(16) if hasattr(pipe, "peek") else b""
    if start.startswith(STARTS):
        content = pipe.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise too_large("standard input", "more")
        yield Found("standard input", lambda: content)
        return
    for line in pipe:
        name = os.fsdecode(line.rstrip(b"\r\n"))
        if name:
            yield _of_file(name)
