"""Checks a data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitrail.data.check import Report, check_source
from vitrail.data.find import open_data
from vitrail.data.table import Source
from vitrail.errors import DataError
from vitrail.report.sheet import write_sheet


def check(
    data: str | Path,
    *,
    data_dir: str | Path | None = None,
    sheet: str | Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check every image of a data set, and all of them together; `sheet` is an HTML page to write.

    The data is only read. Each finding has a path, a kind and a detail.
    """
    source = open_data(data, data_dir=data_dir, progress=progress)
    if sheet is not None:
        _check_place(Path(sheet), source)
    report = check_source(source, workers=workers, progress=progress)
    if sheet is not None:
        write_sheet(report, source, Path(sheet))
    return report


def _check_place(sheet: Path, source: Source) -> None:
    """Fail before the work if the page cannot be written, or would be written into the data."""
    folder = sheet.absolute().parent
    if sheet.suffix.lower() not in (".html", ".htm"):
        raise DataError("the sheet must be an HTML file.", got=f"{sheet}.", hint=f"{sheet.with_suffix('.html')}.")
    if not folder.is_dir() or sheet.is_dir():
        raise DataError(f"{sheet} cannot be written.", got=f"no folder {folder}.", hint="a file in an existing folder.")
    if source.root is not None and source.root.is_dir() and sheet.resolve().is_relative_to(source.root.resolve()):
        raise DataError(
            "the sheet must not be inside the data folder, which is never written to.",
            got=f"{sheet}.",
            hint="a file in another folder.",
        )
