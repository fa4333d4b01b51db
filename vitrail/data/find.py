"""Opens data from what the user typed: a path in any layout, a URL of shards, or a known name."""

from __future__ import annotations

from pathlib import Path

from vitrail import plug
from vitrail.data import known
from vitrail.data.table import Source, Table
from vitrail.data.text.corpus import TEXT_SUFFIXES
from vitrail.errors import DataError, VitrailError, brief

SOURCES = "vitrail.data.source"
FALLBACK = "folder"  # tried last, when a folder is nothing more specific


def open_data(
    data: str | Path,
    *,
    data_dir: str | Path | None = None,
    target: str | None = None,
    progress: known.Progress | None = None,
) -> Source:
    """Open a folder, zip, table, array file, saved data set or shards, or a data set known by name.

    `target`, for regression, names the numeric column of a table; in other layouts the class names are the numbers.
    `progress` is called with the bytes of a download, if there is one.
    """
    location = str(data)
    if not location:
        raise DataError("the data has no name.", got="an empty string.", hint="a folder of class folders.")
    source = _open(location, target)
    if source is not None:
        return source
    if Path(location).is_file():
        suffix = Path(location).suffix
        raise DataError(
            f"{location} is not data that Vitrail can read.",
            got=f"a file with the suffix {suffix}." if suffix else "a file without a suffix.",
            hint="vitrail train --recipe language for text."
            if suffix.lower() in TEXT_SUFFIXES
            else "a folder of class folders, a zip of one, CSV, TSV, Parquet, npz, idx or tar shards.",
        )
    path = known.find(location, Path(data_dir) if data_dir else None, progress)
    source = _open(str(path), target)
    assert source is not None, path
    return source


def _open(location: str, target: str | None) -> Source | None:
    names = sorted(plug.entries(SOURCES), key=lambda name: name == FALLBACK)
    try:
        for name in names:
            module = plug.load(SOURCES, name)
            if module.recognise(location):
                if target is not None and getattr(module, "HAS_COLUMNS", False):
                    return module.open_source(location, target=target)
                source: Source = module.open_source(location)
                return source if target is None else as_numbers(source)
    except VitrailError:
        raise
    except OSError as error:
        got = f"{error.filename or location}: {error.strerror or error}."
        raise DataError(f"{location} cannot be read.", got=got, hint="another path, or fixing permissions.") from None
    except Exception as error:
        # Untrusted bytes reach Arrow, NumPy and zlib here; fuzzing keeps finding new exceptions.
        raise DataError(f"{location} is damaged or truncated.", got=brief(error), hint="a fresh copy.") from error
    return None


def as_numbers(source: Source) -> Table:
    """The class names as numbers."""
    if not isinstance(source, Table):
        raise DataError("shards have no numbers to predict.", got=f"{source.origin}.", hint="a CSV or Parquet table.")
    return source.as_numbers()
