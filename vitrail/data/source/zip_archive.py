"""A zip of class folders, read in place: nothing is extracted, so no member's name can escape."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from vitrail.data.class_folders import UNSUPPORTED, arrange, is_companion, one_modality
from vitrail.data.decode import MAX_BYTES, too_large
from vitrail.data.media import modality_of
from vitrail.data.name_column import NameColumn
from vitrail.data.table import Finding, Table, encode_labels
from vitrail.errors import DataError, brief

ENCRYPTED = 0x1
MAX_RATIO = 200  # unpacked to packed size of a member; images hardly compress
SMALL = 2**20  # bytes below which the ratio is not checked
ESCAPING_NAME = "a name that points outside the archive"
DUPLICATE_NAME = "a name that occurs twice in the archive"


def recognise(location: str) -> bool:
    """Whether this is a .zip file."""
    return location.lower().endswith(".zip") and Path(location).is_file()


def open_source(location: str) -> Table:
    """The images or clips in the archive, as if it were extracted."""
    path = Path(location)
    try:
        archive = zipfile.ZipFile(path)  # stays open: threads may read from it concurrently
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DataError(f"{path} is not an intact zip.", got=brief(error), hint="a fresh copy.") from None
    infos, findings = list_members(archive)
    modality, found, others = one_modality(infos)
    findings += others
    places, ignored = arrange(found, str(path), findings, modality)
    classes, labels = encode_labels([place.label for place in places])
    names = NameColumn(place.name for place in places)
    file_stat = path.stat()

    def stamp(index: int) -> str:
        info = infos[names[index]]
        return f"{path.resolve()}|{file_stat.st_mtime_ns}|{info.header_offset}|{info.CRC}"

    return Table(
        origin=str(path),
        names=names,
        classes=classes,
        labels=labels,
        splits=np.array([place.split for place in places], dtype=np.int8),
        content=lambda index: read_member(archive, infos[names[index]]),
        stamp=stamp,
        findings=(*findings, *ignored),
        root=path,
        modalities=(modality,),
    )


def list_members(archive: zipfile.ZipFile) -> tuple[dict[str, zipfile.ZipInfo], list[Finding]]:
    """The members that suffixes call images or clips, and findings about the others."""
    infos, findings = {}, []
    for info in archive.infolist():
        parts = info.filename.split("/")
        if info.is_dir() or parts[0] == "__MACOSX":
            continue
        if ".." in parts or "" in parts or "\\" in info.filename or info.filename[1:2] == ":":
            findings.append(Finding(info.filename, "unsafe", ESCAPING_NAME))
        elif any(part.startswith(".") for part in parts):
            continue
        elif info.filename in infos:
            findings.append(Finding(info.filename, "unsafe", DUPLICATE_NAME))
        elif modality_of(info.filename) is not None:
            infos[info.filename] = info
        elif len(parts) > 1 and not is_companion(info.filename):
            findings.append(Finding(info.filename, "ignored", UNSUPPORTED))
    return infos, findings


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The bytes of a member, unless it is a zip bomb or damaged."""
    name = info.filename
    if info.flag_bits & ENCRYPTED:
        raise DataError(f"{name} is encrypted.", got="a zip with a password.", hint="one without a password.")
    if info.file_size > MAX_BYTES:
        raise too_large(name, f"{info.file_size / 2**20:,.0f} MiB unpacked")
    if info.file_size > SMALL and info.file_size > MAX_RATIO * info.compress_size:
        raise too_large(name, f"{info.compress_size:,} bytes that unpack to {info.file_size:,}")
    try:
        with archive.open(info) as file:
            return file.read()
    except Exception as error:  # noqa: BLE001 - whatever zlib, lzma, bz2 and zipfile raise
        raise DataError(f"{name} is damaged in the zip.", got=brief(error), hint="a fresh copy.") from None
