"""A folder of images, sounds or videos with one subfolder per class, optionally below train, val and test folders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from vitrail.data.class_folders import UNSUPPORTED, arrange, is_companion, one_modality
from vitrail.data.decode import file_stamp, read_file
from vitrail.data.media import modality_of
from vitrail.data.name_column import NameColumn
from vitrail.data.table import Finding, Table, encode_labels

OUTSIDE_LINK = "a link to outside the folder:"
BROKEN_LINK = "a broken or circular link"
FOLDER_LINK = "a link to a folder, which is not followed"
SPECIAL_FILE = "a pipe, socket or device, which is never opened"


def recognise(location: str) -> bool:
    """Whether this is a folder. Any folder matches, so this source is tried last."""
    return Path(location).is_dir()


def open_source(location: str) -> Table:
    """All images below the folder, or all clips if there are more of them.

    Other files are reported as findings; hidden ones are skipped silently.
    """
    root = Path(location)
    found, findings = _walk(root)
    modality, found, others = one_modality(found)
    findings += others
    places, ignored = arrange(found, str(root), findings, modality)
    classes, labels = encode_labels([place.label for place in places])
    names = NameColumn(place.name for place in places)
    return Table(
        origin=str(root),
        names=names,
        classes=classes,
        labels=labels,
        splits=np.array([place.split for place in places], dtype=np.int8),
        content=(lambda index: read_file(root / names[index], name=names[index]))
        if modality == "image"
        else (lambda index: root / names[index]),  # a clip is never read as a whole
        stamp=lambda index: file_stamp(root / names[index]),
        findings=(*findings, *ignored),
        root=root,
        modalities=(modality,),
    )


def _walk(root: Path) -> tuple[list[str], list[Finding]]:
    """The files that suffixes call images or clips, as paths relative to the root; findings about everything else."""
    inside = root.resolve()
    names: list[str] = []
    findings: list[Finding] = []
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(root / folder))
        except OSError as error:
            if not folder:
                raise
            findings.append(Finding(folder, "unreadable", error.strerror or str(error)))
            continue
        entries = [entry for entry in entries if not entry.name.startswith(".")]
        if folder and not entries:
            findings.append(Finding(folder, "ignored", "an empty folder"))
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            kind = _classify(entry, inside)
            if isinstance(kind, tuple):
                findings.append(Finding(name, *kind))
            elif kind == "folder":
                pending.append(name)
            elif modality_of(name) is not None:
                names.append(name)
            elif not is_companion(name) and "." in entry.name:
                findings.append(Finding(name, "ignored", UNSUPPORTED))
    return names, findings


def _classify(entry: os.DirEntry[str], inside: Path) -> str | tuple[str, str]:
    """`file`, `folder`, or the kind and detail of a finding if it is neither. Opens nothing."""
    try:
        linked = entry.is_symlink()
        if linked:  # only links become path objects: pathlib interns every name
            target = Path(entry.path).resolve(strict=True)
            if not target.is_relative_to(inside):
                return "link", f"{OUTSIDE_LINK} {target}"
        if entry.is_file():
            return "file"
        if not entry.is_dir():
            return "special", SPECIAL_FILE
    except (OSError, RuntimeError):
        return "link", BROKEN_LINK
    return ("link", FOLDER_LINK) if linked else "folder"
