"""Aligned sentences: files of the same number of lines in several languages, or columns of a table.

A folder such as Multi30k's holds train.en, train.de, val.en, val.de, test_2016_flickr.en and so on: the part before the
first underscore is the split, the suffix the language. As in T5 (arXiv 1910.10683) the task is written before each
source sentence, so that one model learns several pairs of languages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.data.table import NO_SPLIT, Table, split_number
from vitrail.data.text.corpus import TABLE_SUFFIXES, checksum, read_table, read_text
from vitrail.errors import DataError

LANGUAGES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish",
    "fi": "Finnish", "fr": "French", "hi": "Hindi", "hu": "Hungarian", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian",
    "ru": "Russian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian", "zh": "Chinese",
}  # fmt: skip
TASK = re.compile(r"translate (?P<source>[^:]{1,40}) to (?P<target>[^:]{1,40}): (?P<text>.+)", re.DOTALL)


class Pair(NamedTuple):
    """A source sentence with its task before it, its translation, and the language of that."""

    source: str
    target: str
    language: str


def task_prefix(source: str, target: str) -> str:
    """How the task is written before a sentence."""
    return f"translate {LANGUAGES.get(source, source)} to {LANGUAGES.get(target, target)}: "


def open_parallel(location: str | Path, *, source: str, targets: Sequence[str]) -> Table:
    """Open aligned sentences: each item is a `Pair`, for each target language all sentences of a split in order."""
    path = Path(location)
    if path.is_dir():
        names, pairs, splits = _read_folder(path, source, targets)
    elif path.suffix.lower() in TABLE_SUFFIXES and path.is_file():
        names, pairs, splits = _read_columns(path, source, targets)
    else:
        raise DataError(
            f"there are no aligned sentences at {path}.",
            got="a file that is not a table." if path.exists() else "no such file or folder.",
            hint=f"a folder with train.{source} and train.{targets[0]}, or a CSV file with these two columns.",
        )
    if not pairs:
        raise DataError(f"{path} has no sentences.", got="empty lines.", hint="one sentence per line.")
    return Table(
        origin=str(path),
        names=names,
        classes=(),
        labels=np.zeros(len(pairs), dtype=np.int32),
        splits=np.array(splits, dtype=np.int8),
        content=pairs.__getitem__,
        checksum=checksum([text for pair in pairs for text in pair[:2]]),
        root=path,
    )


Sentences = tuple[list[str], list[Pair], list[int]]


def _read_folder(folder: Path, source: str, targets: Sequence[str]) -> Sentences:
    stems: dict[int, str] = {}
    for path in sorted(folder.glob(f"*.{source}")):
        number = split_number(re.split(r"[._-]", path.stem)[0])
        if number is not None:
            stems.setdefault(number, path.stem)  # of several test sets, the first by name
    if not stems:
        languages = sorted({path.suffix[1:] for path in folder.glob("train*.*")})
        raise DataError(
            f"{folder} has no sentences in {source!r}.",
            got=f"files in {', '.join(languages)}." if languages else f"no file called train.{source}.",
            hint=f"source={languages[0]}." if languages else f"files train.{source} and train.{targets[0]}.",
        )
    names: list[str] = []
    pairs: list[Pair] = []
    splits: list[int] = []
    for number, stem in sorted(stems.items()):
        lines = {language: _read_lines(folder, stem, language) for language in dict.fromkeys((source, *targets))}
        for language in targets:
            if len(lines[language]) != len(lines[source]):
                raise DataError(
                    f"{stem}.{source} and {stem}.{language} in {folder} are not aligned.",
                    got=f"{len(lines[source]):,} and {len(lines[language]):,} lines.",
                    hint="files with the same sentence in the same line.",
                )
        for language in targets:
            for row, (first, second) in enumerate(zip(lines[source], lines[language], strict=True), start=1):
                if first and second:
                    names.append(f"{stem}.{language}:{row}")
                    pairs.append(Pair(task_prefix(source, language) + first, second, language))
                    splits.append(number)
    return names, pairs, splits


def _read_lines(folder: Path, stem: str, language: str) -> list[str]:
    path = folder / f"{stem}.{language}"
    if not path.is_file():
        others = sorted(each.suffix[1:] for each in folder.glob(f"{stem}.*"))
        raise DataError(
            f"{folder} has no {path.name}.", got=f"{stem} in {', '.join(others)}.", hint="a language that is there."
        )
    return [line.strip() for line in read_text(path).removesuffix("\n").split("\n")]


def _read_columns(path: Path, source: str, targets: Sequence[str]) -> Sentences:
    names: list[str] = []
    pairs: list[Pair] = []
    splits: list[int] = []
    rows = read_table(path, (source, *targets))
    for position, language in enumerate(targets, start=1):
        for row in rows:
            first, second = row.cells[0].strip(), row.cells[position].strip()
            if first and second:
                names.append(f"{path.name}.{language}:{row.line}")
                pairs.append(Pair(task_prefix(source, language) + first, second, language))
                splits.append(row.split)
    if len(set(splits)) > 1 and NO_SPLIT in splits:
        raise DataError(
            f"{path} has rows without a split.",
            got="an empty cell, or another word.",
            hint="train, val or test in each.",
        )
    return names, pairs, splits
