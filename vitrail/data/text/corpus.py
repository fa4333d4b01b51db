"""Text as data: a file, a folder of text files, or a column of a table; one item per document."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.data.table import NO_SPLIT, Table, split_number
from vitrail.errors import DataError

TEXT_SUFFIXES = (".txt", ".md", ".text")
TABLE_SUFFIXES = {".csv": ",", ".tsv": "\t"}
MAX_BYTES = 2**30
MAX_CELL = 2**24  # characters
COLUMN = "text"


class Document(NamedTuple):
    """One text, and the number of its split."""

    name: str
    text: str
    split: int


def open_corpus(location: str | Path, *, column: str | None = None) -> Table:
    """Open text: a file is one document, in a folder each text file is one, in a CSV or TSV file each row of `column`.

    Files or folders called train, val and test, or a column `split`, are splits.
    """
    path = Path(location)
    if path.is_dir():
        documents = _read_folder(path)
    elif path.suffix.lower() in TABLE_SUFFIXES:
        rows = read_table(path, (column or COLUMN,))
        documents = [Document(f"{path.name}:{row.line}", row.cells[0], row.split) for row in rows]
    elif path.is_file():
        documents = [Document(path.name, read_text(path), NO_SPLIT)]
    else:
        raise DataError(
            f"there is no text at {path}.", got="no such file or folder.", hint="a text file, a folder or a CSV file."
        )
    return make_table(path, documents)


def make_table(path: Path, documents: Sequence[Document]) -> Table:
    """A table of documents, those without any text left out."""
    documents = [document for document in documents if document.text.strip()]
    if not documents:
        raise DataError(f"{path} has no text.", got="nothing but spaces.", hint="a file with text in it.")
    without = [document.name for document in documents if document.split == NO_SPLIT]
    if without and len(without) < len(documents):
        raise DataError(
            f"{path} has documents with and without a split.",
            got=f"{without[0]} without" + (f", and {len(without) - 1:,} more." if without[1:] else "."),
            hint="train, val or test for each, or for none.",
        )
    texts = [document.text for document in documents]
    return Table(
        origin=str(path),
        names=[document.name for document in documents],
        classes=(),
        labels=np.zeros(len(documents), dtype=np.int32),
        splits=np.array([document.split for document in documents], dtype=np.int8),
        content=texts.__getitem__,
        checksum=checksum(texts),
        root=path,
    )


def checksum(texts: Sequence[str]) -> str:
    """A hash of texts."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(f"{len(text)} {text}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _read_folder(folder: Path) -> list[Document]:
    """The text files of a folder and its subfolders, in the order of their names."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in TEXT_SUFFIXES and path.is_file())
    if not files:
        raise DataError(
            f"{folder} has no text files.",
            got="none that ends in " + ", ".join(TEXT_SUFFIXES) + ".",
            hint="a folder of .txt files; for translation, --recipe translate source=en target=de.",
        )
    documents = []
    for path in files:
        parts = path.relative_to(folder).with_suffix("").parts
        splits = [number for part in parts if (number := split_number(part)) is not None]
        name = path.relative_to(folder).as_posix()
        documents.append(Document(name, read_text(path), splits[0] if splits else NO_SPLIT))
    if any(document.split != NO_SPLIT for document in documents):  # a README.md beside train.txt and val.txt
        documents = [each for each in documents if each.split != NO_SPLIT or not each.name.lower().endswith(".md")]
    return documents


def read_text(path: Path) -> str:
    """The text of a file in UTF-8; an error names the line and the byte that is not."""
    if path.stat().st_size > MAX_BYTES:
        raise DataError(
            f"{path} is too large.",
            got=f"{path.stat().st_size / 2**20:,.0f} MiB.",
            hint=f"a file of at most {MAX_BYTES // 2**20:,} MiB.",
        )
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        raise DataError(
            f"{path} is not text in UTF-8.",
            got=f"the byte 0x{content[error.start]:02x} in line {line:,}, byte {column:,} of it.",
            hint="saving it as UTF-8.",
        ) from None
    return text.replace("\r\n", "\n")


class Row(NamedTuple):
    """A row of a table of texts."""

    line: int
    cells: tuple[str, ...]
    split: int


def read_table(path: Path, columns: Sequence[str]) -> list[Row]:
    """Read these columns of a CSV or TSV file, and its column `split`, if it has one."""
    csv.field_size_limit(MAX_CELL)
    delimiter = TABLE_SUFFIXES[path.suffix.lower()]
    lines = io.StringIO(read_text(path), newline="")
    if delimiter == "\t":  # where a quotation mark is one
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, [])
        missing = [name for name in columns if name not in header]
        if missing:
            raise DataError(
                f"{path} has no column {missing[0]!r}.",
                got=f"the columns {', '.join(header[:10])}." if header else "an empty file.",
                hint="one of them: column=NAME for a language model, source=NAME target=NAME for a translator.",
            )
        positions = [header.index(name) for name in columns]
        split_column = header.index("split") if "split" in header else None
        rows = []
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path} has a row of another length.",
                    got=f"{len(cells)} cells in line {reader.line_num:,}, {len(header)} in the header.",
                    hint="quoting cells that contain separators.",
                )
            split = NO_SPLIT
            if split_column is not None:
                number = split_number(cells[split_column])
                split = NO_SPLIT if number is None else number
            rows.append(Row(reader.line_num, tuple(cells[position] for position in positions), split))
    except csv.Error as error:
        raise DataError(f"{path} is not a table.", got=f"{error}, in line {reader.line_num:,}.") from None
    return rows
