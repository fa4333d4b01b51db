"""WebDataset shards: tar files that hold each image next to its label under the same key, read as a stream.

Local files, or any URL that fsspec opens. Only one sample is in memory at a time, however many shards there are.
"""

from __future__ import annotations

import glob
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import fsspec
import numpy as np

from vitrail.data.class_folders import OUTSIDE_CLASSES, arrange, has_class_folders, is_image_name
from vitrail.data.decode import MAX_BYTES, too_large
from vitrail.data.table import (
    NO_SPLIT,
    Finding,
    Item,
    Stream,
    check_names,
    no_stamp,
    sorted_classes,
    split_number,
)
from vitrail.errors import DataError, brief

SUFFIXES = (".tar", ".tar.gz", ".tgz")
BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
CLASS_NAMES = ("classnames.txt", "classes.txt")
LABEL_EXTENSIONS = ("cls", "cls.txt")
READ_ERRORS = (tarfile.TarError, EOFError, zlib.error, ValueError, ImportError, OSError)
SPECIAL_MEMBER = "a link or device in an archive, which is not followed"
MAX_LABEL = 4096  # bytes
MAX_SHARDS = 100_000


def recognise(location: str) -> bool:
    """Whether this is a tar file, a pattern or URL of tar files, or a folder of them."""
    if Path(location).is_dir():
        return bool(_list_folder(Path(location)))
    return location.lower().endswith(SUFFIXES)


def open_source(location: str) -> Stream:
    """The shards in the order of their names.

    A first pass over the headers finds the class folders. If there are label files instead, a second pass reads them.
    """
    shards = _list_folder(Path(location)) if Path(location).is_dir() else _expand(location)
    class_names = _read_class_names(shards[0])
    indexes = [_index_shard(shard) for shard in shards]
    has_labels = any(index.has_labels for index in indexes)
    places = {} if has_labels else _place_folders(indexes, location)
    findings = [finding for index in indexes for finding in index.findings]
    labels = {label for _, label in places.values()}
    counts, splits = [], []
    for shard, index in zip(shards, indexes, strict=True):
        inside = [folder for folder in index.folders if folder in places]
        splits.append(_split_of(shard, {places[folder][0] for folder in inside}))
        counts.append(sum(index.folders[folder] for folder in inside))
        if places:
            outside = [folder for folder in index.folders if folder not in places]
            findings += [Finding(f"{_short_name(shard)}/{folder}", "ignored", OUTSIDE_CLASSES) for folder in outside]
        else:
            for _, label, _ in _iter_samples(shard, class_names, places, with_content=False):
                labels.add(label)
                counts[-1] += 1
    if not sum(counts):
        hint = "images with .cls files of the same name."
        raise DataError(f"{location} has no samples.", got=f"{len(shards)} shards.", hint=hint)
    classes = sorted_classes(class_names or labels)
    number = {name: index for index, name in enumerate(classes)}
    starts = np.concatenate([[0], np.cumsum(counts)])

    def items(shard: int) -> Iterator[Item]:
        for position, (name, label, content) in enumerate(_iter_samples(shards[shard], class_names, places)):
            yield Item(int(starts[shard]) + position, name, (number[label],), partial(bytes, content), no_stamp)

    return Stream(
        origin=location,
        classes=classes,
        counts=tuple(counts),
        splits=tuple(splits),
        items=items,
        findings=tuple(findings),
        root=Path(location) if Path(location).exists() else None,
    )


class _ShardIndex(NamedTuple):
    """What the headers of a shard say: whether there are label files, the images per folder, and findings."""

    has_labels: bool
    folders: Counter[str]
    findings: tuple[Finding, ...]


def _index_shard(shard: str) -> _ShardIndex:
    has_labels, folders, findings = False, Counter[str](), []
    for member, _ in _iter_members(shard):
        if not member.isreg():
            findings.append(Finding(f"{_short_name(shard)}/{member.name}", "special", SPECIAL_MEMBER))
        elif _split_key(member.name)[1] in LABEL_EXTENSIONS:
            has_labels = True
        elif is_image_name(member.name):
            folders[str(PurePosixPath(member.name).parent)] += 1
    return _ShardIndex(has_labels, folders, tuple(findings))


def _place_folders(indexes: Sequence[_ShardIndex], location: str) -> dict[str, tuple[int, str]]:
    """The split and class of each folder in the shards, by the same rules as for folders on disk."""
    folders = sorted({folder for index in indexes for folder in index.folders if folder != "."})
    places = arrange([f"{folder}/0.jpg" for folder in folders], location)[0] if folders else []
    return {place.name.rpartition("/")[0]: (place.split, place.label) for place in places}


def _iter_samples(
    shard: str, class_names: Sequence[str] | None, places: Mapping[str, tuple[int, str]], *, with_content: bool = True
) -> Iterator[tuple[str, str, bytes]]:
    """The name, label and content of each sample; the content is empty unless asked for.

    With `places`, an image's folder is its class. Otherwise the files with the same key, an image and its label, are
    one sample.
    """
    key, label, name, best = "", "", "", -1
    content = b""
    for member, read in _iter_members(shard):
        if not member.isreg():
            continue
        stem, extension = _split_key(member.name)
        if places:
            folder = str(PurePosixPath(member.name).parent)
            if is_image_name(member.name) and folder in places:
                yield f"{_short_name(shard)}/{member.name}", places[folder][1], read(MAX_BYTES) if with_content else b""
            continue
        if stem != key:
            if best >= 0:
                yield name, _class_name(label, key, class_names, shard), content
            key, label, best = stem, "", -1
        if extension in LABEL_EXTENSIONS:
            label = read(MAX_LABEL).decode("utf-8", "replace").strip()
        elif is_image_name(member.name) and (plain := int("." not in extension)) > best:  # 1.jpg before 1.mask.png
            best, name = plain, f"{_short_name(shard)}/{member.name}"
            content = read(MAX_BYTES) if with_content else b""
    if best >= 0:
        yield name, _class_name(label, key, class_names, shard), content


def _short_name(shard: str) -> str:
    return "/".join(PurePosixPath(shard).parts[-2:])


def _iter_members(shard: str) -> Iterator[tuple[tarfile.TarInfo, Callable[[int], bytes]]]:
    """The members of an archive in order, each with a function that reads it up to a size limit."""
    try:
        with _open_file(shard) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # else tarfile keeps a list of all members
                if not member.isdir() and not PurePosixPath(member.name).name.startswith("."):
                    yield member, partial(_read_member, archive, member, shard)
            stream: Any = archive.fileobj
            if stream.tell() < archive.offset + tarfile.BLOCKSIZE:  # every archive ends with blocks of zeros
                raise EOFError("the end of the archive is missing")
    except READ_ERRORS as error:
        raise _unreadable(shard, error) from None


def _open_file(address: str) -> Any:
    """A local or remote file. Pipes are refused: opening one would block."""
    path = Path(address)
    if path.exists() and not path.is_file():
        raise OSError(f"{address} is not a regular file")
    return fsspec.open(address, "rb")


def _split_key(name: str) -> tuple[str, str]:
    """The key that the files of a sample share, and the extension that tells them apart."""
    folder, slash, last = name.rpartition("/")
    stem, _, extension = last.partition(".")
    return folder + slash + stem, extension.lower()


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, shard: str, limit: int) -> bytes:
    if member.size > limit:
        raise too_large(member.name, f"{member.size:,} bytes")
    try:
        file = archive.extractfile(member)
        content = file.read() if file is not None else b""
    except READ_ERRORS as error:
        raise _unreadable(shard, error) from None
    if len(content) != member.size:
        raise _unreadable(shard, EOFError(f"{member.name} is truncated"))
    return content


def _unreadable(shard: str, error: Exception) -> DataError:
    return DataError(f"{shard} is not a readable shard.", got=brief(error), hint="a fresh copy.")


def _class_name(label: str, key: str, class_names: Sequence[str] | None, shard: str) -> str:
    """The class of a sample: what its .cls file says, as a name or as a number in `class_names`, else its folder."""
    folder = PurePosixPath(key).parent.name
    if not label and not folder:
        raise DataError(f"{shard} has a sample without a label.", got=f"{key!r}.", hint=f"adding a file {key}.cls.")
    if class_names is None:
        return label or folder
    if label.isdecimal() and int(label) < len(class_names):
        return class_names[int(label)]
    if (label or folder) not in class_names:
        hint = f"0 to {len(class_names) - 1}, or a name from the list."
        raise DataError(f"{shard} has a label that is not a listed class.", got=f"{label or folder!r}.", hint=hint)
    return label or folder


def _list_folder(folder: Path) -> list[str]:
    """The shards of a folder and its subfolders, in the order train, val, test."""
    patterns = ("*", "*/*")
    names = (name for each in patterns for name in glob.iglob(each, root_dir=folder))  # noqa: PTH207 - it interns names
    found = [folder / name for name in names if name.lower().endswith(SUFFIXES)]
    if not found or has_class_folders(folder):
        return []
    return sorted((str(path) for path in found if path.is_file()), key=lambda path: (_split_of(path, set()), path))


def _expand(pattern: str) -> list[str]:
    """The shards that match a pattern with {000..199} or *. Commands, as in pipe:, are refused."""
    if pattern.startswith("pipe:"):
        raise DataError("shards are read, not run.", got=f"{pattern!r}.", hint="a path, or a URL that fsspec opens.")
    paths = [pattern]
    while match := BRACES.search(paths[0]):
        first, last = match[1], match[2]
        if not 0 < (int(last) - int(first) + 1) * len(paths) <= MAX_SHARDS:
            raise DataError("this pattern matches no shards.", got=f"{match[0]}.", hint="{000..199}.")
        numbers = range(int(first), int(last) + 1)
        paths = [BRACES.sub(str(number).zfill(len(first)), each, count=1) for each in paths for number in numbers]
    if "*" in pattern:
        paths = sorted(str(file.path if "://" not in pattern else file.full_name) for file in fsspec.open_files(paths))
    if not paths:
        raise DataError(f"no shards at {pattern}.", got="a pattern that matches nothing.", hint="an existing path.")
    return paths


def _split_of(shard: str, inside: set[int]) -> int:
    """The split of the folders inside a shard, else the one that the file or its folder is named after."""
    if len(inside) > 1:
        raise DataError(
            f"{shard} holds more than one split.", got="folders of different splits.", hint="one shard per split."
        )
    path = PurePosixPath(shard)
    for word in (re.split(r"[-_.]", path.name)[0], path.parent.name):
        number = split_number(word)
        if number is not None and inside <= {NO_SPLIT}:
            return number
    return next(iter(inside), NO_SPLIT)


def _read_class_names(shard: str) -> list[str] | None:
    """The class names in order of their numbers, if there is a list next to the shards or one folder up."""
    folder = shard.rpartition("/")[0] or "."
    for parent in (folder, f"{folder}/.."):
        for name in CLASS_NAMES:
            try:
                with _open_file(f"{parent}/{name}") as file:
                    text: Any = file.read(MAX_BYTES)
            except (OSError, ValueError, ImportError):
                continue
            names = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
            check_names(names, f"{parent}/{name}")
            return names
    return None
