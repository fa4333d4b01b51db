"""`vitrail predict`."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrail.console import JsonFlag, ModelArgument, QuietFlag, WeightsOption, remark
from vitrail.errors import VitrailError, shown

if TYPE_CHECKING:
    from vitrail.verbs.predict import Row

SECONDS = 10.0  # between two lines about how far it is


def command(
    model: ModelArgument,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGES...", help="Pictures, folders, zips, patterns, or - for a pipe.")
    ],
    weights: WeightsOption = None,
    form: Annotated[
        Literal["table", "jsonl", "csv"], typer.Option("--format", help="How rows are printed, one a picture.")
    ] = "table",
    top: Annotated[int, typer.Option(min=1, help="How many labels a picture, in JSON.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    copy_to: Annotated[Path | None, typer.Option(help="Sort copies into a folder a class here.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """What a model sees in pictures: labels with calibrated confidence, or "unknown"."""
    from vitrail.verbs.predict import predict

    rows = predict(model, images, weights=weights, top=top, batch_size=batch_size, copy_to=copy_to)
    num = num_errors = num_unknown = 0
    write = _writer("json" if as_json else form)
    last = time.monotonic()
    for row in _closing(rows, write):
        write(row)
        if time.monotonic() - last > SECONDS and not sys.stdout.isatty():  # on a terminal the rows themselves tell
            last = time.monotonic()
            remark(f"{num:,} pictures so far", quiet=quiet)
        num += 1
        num_errors += row.error is not None
        num_unknown += row.prediction is not None and row.prediction.unknown
    write(None)
    pictures = "1 picture" if num == 1 else f"{num:,} pictures"
    remark(f"{pictures}, {num_unknown:,} unknown, {num_errors:,} that cannot be read.", quiet=quiet)
    if num == num_errors:
        raise typer.Exit(2)


def _closing(rows: Iterator[Row], write: Any) -> Iterator[Row]:
    """The rows; if something ends them early, what was begun is ended too."""
    begun = False
    try:
        for row in rows:
            begun = True
            yield row
    except VitrailError:
        if begun:
            write(None)
        raise


def _writer(form: str) -> Any:
    """A function that prints rows as they come, and ends the document when it is told None."""
    if form == "csv":
        return _CsvTable()
    if form == "jsonl":
        return lambda row: None if row is None else print(json.dumps(document(row)))
    if form == "json":
        return _JsonList()
    return lambda row: None if row is None else print(_line(row))


class _CsvTable:
    """Rows below a line of titles, which is not written before there is a row."""

    def __init__(self) -> None:
        self.table = csv.writer(sys.stdout, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        self.begun = False

    def __call__(self, row: Row | None) -> None:
        if row is None:
            return
        if not self.begun:
            self.table.writerow(["path", "label", "confidence", "unknown", "error"])
        self.begun = True
        self.table.writerow(_cells(row))


class _JsonList:
    """One JSON document of all rows, written as they come."""

    def __init__(self) -> None:
        self.before = "["

    def __call__(self, row: Row | None) -> None:
        if row is None:
            print("[]" if self.before == "[" else "\n]")
            return
        print(f"{self.before}\n  {json.dumps(document(row))}", end="")
        self.before = ","


def document(row: Row) -> dict[str, Any]:
    """A row as JSON has it."""
    if row.prediction is None:
        return {"path": row.path, "error": row.error}
    return {"path": row.path, **row.prediction.document()}


def _cells(row: Row) -> list[object]:
    told = row.prediction
    if told is None:
        return [row.path, "", "", "", row.error]
    return [row.path, told.words, round(told.confidence, 6), str(told.unknown).lower(), ""]


def _line(row: Row) -> str:
    told = row.prediction
    if told is None:
        return f"{'error':>8}  {shown(row.path)}: {shown(row.error or '')}"
    label = shown(told.words) or "(none)"
    label = f"unknown ({label}?)" if told.unknown else label
    return f"{told.confidence:8.1%}  {label:<32}  {shown(row.path)}"
