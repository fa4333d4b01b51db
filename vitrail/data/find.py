"""From a word on the command line to a source: a path of any layout, an address of shards, or a known name."""

from __future__ import annotations

from pathlib import Path

from vitrail import plug
from vitrail.data import known
from vitrail.data.table import Source
from vitrail.errors import DataError, VitrailError, brief

SOURCES = "vitrail.data.source"
LAST = "folder"  # what is left when a folder is nothing more special


def open_data(
    data: str | Path, *, data_dir: str | Path | None = None, progress: known.Progress | None = None
) -> Source:
    """The pictures of a folder, zip, table, array file, saved data set or shards, or of a data set known by name.

    `progress` is told the bytes of a download, if there is one.
    """
    word = str(data)
    if not word:
        raise DataError("the data has no name.", got="an empty word.", hint="a folder of class folders.")
    source = _open(word)
    if source is not None:
        return source
    if Path(word).is_file():
        raise DataError(
            f"{word} is no data that Vitrail reads.",
            got=f"a file with the ending {Path(word).suffix or 'of nothing'}.",
            hint="a folder of class folders, a zip of one, CSV, TSV, Parquet, npz, idx or tar shards.",
        )
    place = known.find(word, Path(data_dir) if data_dir else None, progress)
    source = _open(str(place))
    assert source is not None, place
    return source


def _open(word: str) -> Source | None:
    names = sorted(plug.entries(SOURCES), key=lambda name: name == LAST)
    try:
        for name in names:
            module = plug.load(SOURCES, name)
            if module.recognise(word):
                return module.open_source(word)
    except VitrailError:
        raise
    except OSError as error:
        got = f"{error.filename or word}: {error.strerror or error}."
        raise DataError(f"{word} cannot be read.", got=got, hint="another path, or the right to read it.") from None
    except Exception as error:
        # Foreign bytes reach Arrow, NumPy and zlib here, and fuzzing finds ever new ways to upset them.
        raise DataError(f"{word} is damaged or cut short.", got=brief(error), hint="a new copy.") from error
    return None
