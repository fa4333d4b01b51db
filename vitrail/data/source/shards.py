"""WebDataset shards: tar files in which a picture and its label follow each other under one key, read as a stream.

Local files, or whatever fsspec opens. What is held in memory is one sample at a time, however many shards there are.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
import numpy as np

from vitrail.data.decode import MAX_BYTES, too_large
from vitrail.data.layout import is_picture
from vitrail.data.table import NO_SPLIT, Finding, Picture, Stream, no_stamp, sorted_classes, split_number
from vitrail.errors import DataError, brief

ENDINGS = (".tar", ".tar.gz", ".tgz")
BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
CLASS_NAMES = ("classnames.txt", "classes.txt")
NO_FILE = "a link or device in an archive, which is not followed"
MAX_LABEL = 4096  # bytes
MAX_SHARDS = 100_000


def recognise(word: str) -> bool:
    """Tar files by name, pattern or address, or a folder of them."""
    if Path(word).is_dir():
        return bool(_in_folder(Path(word)))
    return word.lower().endswith(ENDINGS)


def open_source(word: str) -> Stream:
    """The shards in the order of their names; one pass over their heads counts the samples and the classes."""
    shards = _in_folder(Path(word)) if Path(word).is_dir() else _expand(word)
    names = _class_names(shards[0])
    counts: list[int] = []
    labels: set[str] = set()
    aside: list[Finding] = []
    for shard in shards:
        counts.append(0)
        for _, label, _ in _samples(shard, names, aside):
            labels.add(label)
            counts[-1] += 1
    if not sum(counts):
        raise DataError(f"{word} has no samples.", got=f"{len(shards)} shards.", hint="pictures with .cls beside them.")
    classes = sorted_classes(names or labels)
    number = {name: index for index, name in enumerate(classes)}
    starts = np.concatenate([[0], np.cumsum(counts)])

    def pictures(shard: int) -> Iterator[Picture]:
        for position, (name, label, content) in enumerate(_samples(shards[shard], names)):
            yield Picture(int(starts[shard]) + position, name, (number[label],), partial(_given, content), no_stamp)

    return Stream(
        origin=word,
        classes=classes,
        counts=tuple(counts),
        splits=tuple(_split_of(shard) for shard in shards),
        pictures=pictures,
        aside=tuple(aside),
        root=Path(word) if Path(word).exists() else None,
    )


def _given(content: bytes) -> bytes:
    return content


def _samples(
    shard: str, names: Sequence[str] | None, aside: list[Finding] | None = None
) -> Iterator[tuple[str, str, bytes]]:
    """The name, label and content of each sample; without the content if it is only for what lies aside."""
    place = "/".join(PurePosixPath(shard).parts[-2:])
    key, label, name = "", "", ""
    content: bytes | None = None
    try:
        for member, read in _members(shard):
            if not member.isreg():
                if aside is not None:
                    aside.append(Finding(f"{place}/{member.name}", "special", NO_FILE))
                continue
            stem, ending = _split_key(member.name)
            if stem != key:
                if content is not None:
                    yield name, _label(label, key, names, shard), content
                key, label, content = stem, "", None
            if ending in ("cls", "cls.txt"):
                label = read(MAX_LABEL).decode("utf-8", "replace").strip()
            elif is_picture(member.name):
                name = f"{place}/{member.name}"
                content = read(MAX_BYTES) if aside is None else b""
        if content is not None:
            yield name, _label(label, key, names, shard), content
    except (tarfile.TarError, EOFError, zlib.error, ValueError, ImportError, OSError) as error:
        raise DataError(f"{shard} is no shard that can be read.", got=brief(error), hint="a new copy.") from None


def _members(shard: str) -> Iterator[tuple[tarfile.TarInfo, Callable[[int], bytes]]]:
    """What stands in an archive, one after the other, each with a way to read it up to a limit."""
    with _opened(shard) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # else the list of all members grows
            if not member.isdir() and not PurePosixPath(member.name).name.startswith("."):
                yield member, partial(_read, archive, member)
        stream: Any = archive.fileobj
        if stream.tell() < archive.offset + tarfile.BLOCKSIZE:  # every archive ends with blocks of zeros
            raise EOFError("the end of the archive is missing")


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


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, limit: int) -> bytes:
    if member.size > limit:
        raise too_large(member.name, f"{member.size:,} bytes")
    file = archive.extractfile(member)
    assert file is not None
    content = file.read()
    if len(content) != member.size:
        raise EOFError(f"{member.name} is cut short")
    return content


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
    return sorted((str(path) for path in found if path.is_file()), key=lambda path: (_split_of(path), path))


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


def _split_of(shard: str) -> int:
    """The split that the file, or else its folder, is named after."""
    path = PurePosixPath(shard)
    for word in (re.split(r"[-_.]", path.name)[0], path.parent.name):
        number = split_number(word)
        if number is not None:
            return number
    return NO_SPLIT


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
            return [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return None
