"""A text on the command line: the text itself, the path of a text file, or - for standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from vitrail.data.text.corpus import MAX_BYTES, TEXT_SUFFIXES, read_text
from vitrail.errors import DataError, brief

PIPE = "-"


class TextArgument(NamedTuple):
    """A text, and the name of the file that it was read from, if any."""

    text: str
    file: str | None = None


def read_argument(word: str) -> TextArgument:
    """Read what a word of the command line stands for; one that looks like a missing text file is refused."""
    if word == PIPE:
        content = sys.stdin.buffer.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise DataError(
                "the text is too large.", got=f"more than {MAX_BYTES // 2**20:,} MiB.", hint="a part of it."
            )
        return TextArgument(_decode(content))
    if looks_like_path(word, TEXT_SUFFIXES):
        path = Path(word)
        try:
            return TextArgument(read_text(path), path.name)
        except (OSError, ValueError) as error:
            got = error.strerror if isinstance(error, OSError) else str(error)
            raise DataError(f"{word} cannot be read.", got=f"{got}.", hint="the path of a text file.") from None
    try:
        word.encode("utf-8")
    except UnicodeEncodeError as error:  # the shell passed bytes that are not UTF-8
        raise DataError("the text is not UTF-8.", got=brief(error), hint="a terminal that writes UTF-8.") from None
    return TextArgument(word)


def looks_like_path(word: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a word ends like a file name; with spaces in it, only if there is such a file."""
    if not word.lower().endswith(suffixes) or "\n" in word:
        return False
    if not any(char.isspace() for char in word):
        return True
    try:
        return Path(word).is_file()
    except (OSError, ValueError):  # too long for a path, or a null byte in it
        return False


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            "standard input is not text in UTF-8.",
            got=f"the byte 0x{content[error.start]:02x} at place {error.start:,}.",
            hint="saving it as UTF-8.",
        ) from None
