"""A zip of class folders, read in place: nothing is unpacked, so no name in it can lead anywhere."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from vitrail.data.class_folders import UNFIT_NAME, arrange, is_companion, is_image_name
from vitrail.data.decode import MAX_BYTES, too_large
from vitrail.data.table import Finding, Table, numbered
from vitrail.errors import DataError, brief

ENCRYPTED = 0x1
MAX_RATIO = 200  # times that a member may grow; a picture hardly does
SMALL = 2**20  # bytes that any member may have
LEADS_OUT = "a name that leads out of the archive"


def recognise(word: str) -> bool:
    """A zip by its name."""
    return word.lower().endswith(".zip") and Path(word).is_file()


def open_source(word: str) -> Table:
    """The pictures of the archive, as if it were unpacked."""
    path = Path(word)
    try:
        archive = zipfile.ZipFile(path)  # stays open: threads may read from it side by side
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DataError(f"{path} is no whole zip.", got=brief(error), hint="a new copy.") from None
    infos, aside = members(archive)
    places, more = arrange(list(infos), str(path), aside)
    classes, labels = numbered([place.label for place in places])
    names = [place.name for place in places]
    state = path.stat()

    def stamp(index: int) -> str:
        info = infos[names[index]]
        return f"{path.resolve()}|{state.st_mtime_ns}|{info.header_offset}|{info.CRC}"

    return Table(
        origin=str(path),
        names=names,
        classes=classes,
        labels=labels,
        splits=np.array([place.split for place in places], dtype=np.int8),
        content=lambda index: read_member(archive, infos[names[index]]),
        stamp=stamp,
        aside=(*aside, *more),
        root=path,
    )


def members(archive: zipfile.ZipFile) -> tuple[dict[str, zipfile.ZipInfo], list[Finding]]:
    """The members that are called like pictures, and what else is worth a word."""
    infos, aside = {}, []
    for info in archive.infolist():
        parts = info.filename.split("/")
        if info.is_dir() or parts[0] == "__MACOSX":
            continue
        if ".." in parts or "" in parts or "\\" in info.filename or info.filename[1:2] == ":":
            aside.append(Finding(info.filename, "unsafe", LEADS_OUT))
        elif any(part.startswith(".") for part in parts):
            continue
        elif info.filename in infos:
            aside.append(Finding(info.filename, "unsafe", "a name that the archive has twice"))
        elif is_image_name(info.filename):
            infos[info.filename] = info
        elif len(parts) > 1 and not is_companion(info.filename):
            aside.append(Finding(info.filename, "ignored", UNFIT_NAME))
    return infos, aside


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The bytes of a member, unless it is a bomb or damaged."""
    name = info.filename
    if info.flag_bits & ENCRYPTED:
        raise DataError(f"{name} is encrypted.", got="a zip with a password.", hint="one without.")
    if info.file_size > MAX_BYTES:
        raise too_large(name, f"{info.file_size / 2**20:,.0f} MiB unpacked")
    if info.file_size > SMALL and info.file_size > MAX_RATIO * info.compress_size:
        raise too_large(name, f"{info.compress_size:,} bytes that unpack to {info.file_size:,}")
    try:
        with archive.open(info) as file:
            return file.read()
    except Exception as error:  # noqa: BLE001 - zlib's, lzma's, bz2's and zipfile's own
        raise DataError(f"{name} is damaged in the zip.", got=brief(error), hint="a new copy.") from None
