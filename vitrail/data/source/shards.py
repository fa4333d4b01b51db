"""WebDataset shards: tar files in which a picture and its label follow each other under one key, read as a stream.

Local files, or whatever fsspec opens. What is held in memory is one sample at a time, however many shards there are.
"""

from __future__ import annotations

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

from vitrail.data.class_folders import OUTSIDE, arrange, has_class_folders, is_image_name
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

ENDINGS = (".tar", ".tar.gz", ".tgz")
BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
CLASS_NAMES = ("classnames.txt", "classes.txt")
LABELS = ("cls", "cls.txt")
DAMAGES = (tarfile.TarError, EOFError, zlib.error, ValueError, ImportError, OSError)
NO_FILE = "a link or device in an archive, which is not followed"
MAX_LABEL = 4096  # bytes
MAX_SHARDS = 100_000


def recognise(word: str) -> bool:
    """Tar files by name, pattern or address, or a folder of them."""
    if Path(word).is_dir():
        return bool(_in_folder(Path(word)))
    return word.lower().endswith(ENDINGS)


def open_source(word: str) -> Stream:
    """The shards in the order of their names.

    A pass over their heads finds the folders, and, if labels stand beside the pictures, a second one reads these.
    """
    shards = _in_folder(Path(word)) if Path(word).is_dir() else _expand(word)
    names = _class_names(shards[0])
    heads = [_head(shard) for shard in shards]
    keyed = any(head.keyed for head in heads)
    places = {} if keyed else _folders(heads, word)
    aside = [finding for head in heads for finding in head.aside]
    labels = {label for _, label in places.values()}
    counts, splits = [], []
    for shard, head in zip(shards, heads, strict=True):
        inside = [folder for folder in head.folders if folder in places]
        splits.append(_split_of(shard, {places[folder][0] for folder in inside}))
        counts.append(sum(head.folders[folder] for folder in inside))
        if places:
            left = [folder for folder in head.folders if folder not in places]
            aside += [Finding(f"{_place(shard)}/{folder}", "ignored", OUTSIDE) for folder in left]
        else:
            for _, label, _ in _samples(shard, names, places, heads_only=True):
                labels.add(label)
                counts[-1] += 1
    if not sum(counts):
        raise DataError(f"{word} has no samples.", got=f"{len(shards)} shards.", hint="pictures with .cls beside them.")
    classes = sorted_classes(names or labels)
    number = {name: index for index, name in enumerate(classes)}
    starts = np.concatenate([[0], np.cumsum(counts)])

    def pictures(shard: int) -> Iterator[Item]:
        for position, (name, label, content) in enumerate(_samples(shards[shard], names, places)):
            yield Item(int(starts[shard]) + position, name, (number[label],), partial(_given, content), no_stamp)

    return Stream(
        origin=word,
        classes=classes,
        counts=tuple(counts),
        splits=tuple(splits),
        pictures=pictures,
        aside=tuple(aside),
        root=Path(word) if Path(word).exists() else None,
    )


class _Head(NamedTuple):
    """What the names in a shard tell: whether labels stand beside pictures, pictures by folder, what is no file."""

    keyed: bool
    folders: Counter[str]
    aside: tuple[Finding, ...]


def _head(shard: str) -> _Head:
    keyed, folders, aside = False, Counter[str](), []
    for member, _ in _members(shard):
        if not member.isreg():
            aside.append(Finding(f"{_place(shard)}/{member.name}", "special", NO_FILE))
        elif _split_key(member.name)[1] in LABELS:
            keyed = True
        elif is_image_name(member.name):
            folders[str(PurePosixPath(member.name).parent)] += 1
    return _Head(keyed, folders, tuple(aside))


def _folders(heads: Sequence[_Head], word: str) -> dict[str, tuple[int, str]]:
    """The split and the class of each folder in the shards, as the same folders on a disk would have them."""
    folders = sorted({folder for head in heads for folder in head.folders if folder != "."})
    found = arrange([f"{folder}/0.jpg" for folder in folders], word)[0] if folders else []
    return {place.name.rpartition("/")[0]: (place.split, place.label) for place in found}


def _given(content: bytes) -> bytes:
    return content


def _samples(
    shard: str, names: Sequence[str] | None, places: Mapping[str, tuple[int, str]], *, heads_only: bool = False
) -> Iterator[tuple[str, str, bytes]]:
    """The name, label and content of each sample; without the content if only the heads are asked for.

    With `places`, a picture's folder is its class. Else the files of one key are a sample: a picture, and its label.
    """
    key, label, name, best = "", "", "", -1
    content = b""
    for member, read in _members(shard):
        if not member.isreg():
            continue
        stem, ending = _split_key(member.name)
        if places:
            folder = str(PurePosixPath(member.name).parent)
            if is_image_name(member.name) and folder in places:
                yield f"{_place(shard)}/{member.name}", places[folder][1], b"" if heads_only else read(MAX_BYTES)
            continue
        if stem != key:
            if best >= 0:
                yield name, _label(label, key, names, shard), content
            key, label, best = stem, "", -1
        if ending in LABELS:
            label = read(MAX_LABEL).decode("utf-8", "replace").strip()
        elif is_image_name(member.name) and (plain := int("." not in ending)) > best:  # 1.jpg rather than 1.mask.png
            best, name = plain, f"{_place(shard)}/{member.name}"
            content = b"" if heads_only else read(MAX_BYTES)
    if best >= 0:
        yield name, _label(label, key, names, shard), content


def _place(shard: str) -> str:
    return "/".join(PurePosixPath(shard).parts[-2:])


def _members(shard: str) -> Iterator[tuple[tarfile.TarInfo, Callable[[int], bytes]]]:
    """What stands in an archive, one after the other, each with a way to read it up to a limit."""
    try:
        with _opened(shard) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # else the list of all members grows
                if not member.isdir() and not PurePosixPath(member.name).name.startswith("."):
                    yield member, partial(_read, archive, member, shard)
            stream: Any = archive.fileobj
            if stream.tell() < archive.offset + tarfile.BLOCKSIZE:  # every archive ends with blocks of zeros
                raise EOFError("the end of the archive is missing")
    except DAMAGES as error:
        raise _damaged(shard, error) from None


def _opened(address: str) -> Any:
    """A file here or elsewhere; a pipe would be waited for."""
    path = Path(address)
    if path.exists() and not path.is_file():
        raise OSError(f"{address} is no plain file")
    return fsspec.open(address, "rb")


def _split_key(name: str) -> tuple[str, str]:
    """What the files of one sample have in common, and the ending that tells them apart."""
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return folder + slash + stem, ending.lower()


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, shard: str, limit: int) -> bytes:
    if member.size > limit:
        raise too_large(member.name, f"{member.size:,} bytes")
    try:
        file = archive.extractfile(member)
        content = file.read() if file is not None else b""
    except DAMAGES as error:
        raise _damaged(shard, error) from None
    if len(content) != member.size:
        raise _damaged(shard, EOFError(f"{member.name} is cut short"))
    return content


def _damaged(shard: str, error: Exception) -> DataError:
    return DataError(f"{shard} is no shard that can be read.", got=brief(error), hint="a new copy.")


def _label(label: str, key: str, names: Sequence[str] | None, shard: str) -> str:
    """The class name: by number if there are names, else what .cls says, else the folder that the picture is in."""
    folder = PurePosixPath(key).parent.name
    if not label and not folder:
        raise DataError(f"{shard} has a sample without a label.", got=f"{key!r}.", hint=f"a file {key}.cls beside it.")
    if names is None:
        return label or folder
    if label.isdecimal() and int(label) < len(names):
        return names[int(label)]
    if (label or folder) not in names:
        hint = f"0 to {len(names) - 1}, or a name of the list beside it."
        raise DataError(f"{shard} has a label that names no class.", got=f"{label or folder!r}.", hint=hint)
    return label or folder


def _in_folder(folder: Path) -> list[str]:
    """The shards of a folder, or of the splits in it, in the order train, val, test."""
    found = [path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.name.lower().endswith(ENDINGS)]
    if not found or has_class_folders(folder):
        return []
    return sorted((str(path) for path in found if path.is_file()), key=lambda path: (_split_of(path, set()), path))


def _expand(word: str) -> list[str]:
    """The shards that a pattern stands for: {000..199} and *; a command, as in pipe:, is nothing we run."""
    if word.startswith("pipe:"):
        raise DataError("shards are read, not run.", got=f"{word!r}.", hint="a path, or an address that fsspec opens.")
    words = [word]
    while match := BRACES.search(words[0]):
        first, last = match[1], match[2]
        if not 0 < (int(last) - int(first) + 1) * len(words) <= MAX_SHARDS:
            raise DataError("this pattern stands for no shards.", got=f"{match[0]}.", hint="{000..199}.")
        numbers = range(int(first), int(last) + 1)
        words = [BRACES.sub(str(number).zfill(len(first)), each, count=1) for each in words for number in numbers]
    if "*" in word:
        words = sorted(str(file.path if "://" not in word else file.full_name) for file in fsspec.open_files(words))
    if not words:
        raise DataError(f"no shards at {word}.", got="a pattern that nothing fits.", hint="an existing path.")
    return words


def _split_of(shard: str, inside: set[int]) -> int:
    """The split of the folders inside a shard, or that the file, or else its own folder, is named after."""
    if len(inside) > 1:
        raise DataError(f"{shard} holds several splits.", got="folders of both.", hint="a shard for each split.")
    path = PurePosixPath(shard)
    for word in (re.split(r"[-_.]", path.name)[0], path.parent.name):
        number = split_number(word)
        if number is not None and inside <= {NO_SPLIT}:
            return number
    return next(iter(inside), NO_SPLIT)


def _class_names(shard: str) -> list[str] | None:
    """The names of the classes by number, if a list of them lies beside the shards or one folder up."""
    folder = shard.rpartition("/")[0] or "."
    for place in (folder, f"{folder}/.."):
        for name in CLASS_NAMES:
            try:
                with _opened(f"{place}/{name}") as file:
                    text: Any = file.read(MAX_BYTES)
            except (OSError, ValueError, ImportError):
                continue
            names = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
            check_names(names, f"{place}/{name}")
            return names
    return None
