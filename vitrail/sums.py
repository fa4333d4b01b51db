"""SHA256SUMS: the sums of a folder's files, as `sha256sum --check` reads them.

A file that was changed afterwards, by a failing disk or by hand, is refused when it is read. Folders without the list,
and files that are not in it, are not checked: deleting a line accepts a change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from vitrail.errors import VitrailError, brief
from vitrail.files import write_text

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+)")
MAX_BYTES = 2**16


def write_sums(
    folder: Path, names: Iterable[str], error_type: type[VitrailError], *, contents: Mapping[str, bytes] | None = None
) -> None:
    """List the sums of those files that exist, and of the contents of files that are yet to be written."""
    coming = {name: hashlib.sha256(content).hexdigest() for name, content in (contents or {}).items()}
    sums = {name: sum_of(folder / name) for name in names if (folder / name).is_file()} | coming
    write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)), folder / SUMS, error_type)


def read_sums(folder: Path, error_type: type[VitrailError]) -> dict[str, str]:
    """The sums of a folder's files by name; empty without a list."""
    path = folder / SUMS
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode("ascii")
        lines = [LINE.fullmatch(line) for line in text.split("\n")[:-1]]
        if len(text) > MAX_BYTES or not text.endswith("\n") or None in lines:
            raise ValueError("a line that is not a sum and a name")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise error_type(
            f"{path} is damaged.", got=brief(error), hint="the original file; without it, no file is checked."
        ) from None
    return {match[2]: match[1] for match in lines if match is not None}


def check_sum(path: Path, error_type: type[VitrailError], *, content: bytes | None = None) -> None:
    """Refuse a file, or its content, that is not the one whose sum its folder lists."""
    expected = read_sums(path.parent, error_type).get(path.name)
    if expected is None:
        return
    if content is None and not path.is_file():
        got = "no such file."
    elif expected == (sum_of(path) if content is None else hashlib.sha256(content).hexdigest()):
        return
    else:
        got = f"another SHA-256 sum than in {SUMS}."
    raise error_type(
        f"{path} is not the file that was written.",
        got=got,
        hint=f"the original file. If you changed it yourself, delete its line from {path.parent / SUMS}.",
    )


def sum_of(path: Path) -> str:
    """The SHA-256 sum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
