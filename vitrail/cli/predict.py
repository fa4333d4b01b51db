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

from vitrail.console import JsonFlag, ModelArgument, QuietFlag, WeightsOption, print_json, remark
from vitrail.errors import DataError, VitrailError, printable
from vitrail.percent import percent

if TYPE_CHECKING:
    from vitrail.verbs.predict import ImageResult

CLASS_COLUMNS = ("label", "confidence", "unknown")
PROGRESS_SECONDS = 10.0  # between two lines of progress


def command(
    model: ModelArgument,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGES...", help="Images, folders, zips, patterns, or - for a pipe.")
    ],
    weights: WeightsOption = None,
    form: Annotated[
        Literal["table", "jsonl", "csv"], typer.Option("--format", help="Output format, one row per image.")
    ] = "table",
    top: Annotated[int, typer.Option(min=1, help="Labels per image, in JSON.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    copy_to: Annotated[Path | None, typer.Option(help="Sort copies into one folder per class here.")] = None,
    labels: Annotated[
        str | None, typer.Option(help="Words to choose from, separated by commas, for a run of the recipe align.")
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Classify images, with confidence or "unknown"; fill the gaps of a text ("The [MASK] barks")."""
    from vitrail.run.artefact import ALIGNMENT, CLIPS, kind_of
    from vitrail.run.text_model import TEXT_KINDS
    from vitrail.verbs.predict import predict, predict_words

    kind = kind_of(model) if weights is None else None
    noun = {ALIGNMENT: "sample", CLIPS: "clip"}.get(str(kind), "image")
    if kind in TEXT_KINDS:
        if copy_to is not None:
            raise DataError("--copy-to sorts images.", got="a model of text.", hint="no --copy-to.")
        _fill_gaps(model, images, top, form, as_json=as_json)
        return
    if kind == ALIGNMENT:
        if labels is None or copy_to is not None:
            raise DataError(
                "a run that aligns modalities labels images by words.",
                got="--copy-to." if labels else "no --labels.",
                hint='--labels "a cat,a dog", or vitrail search.',
            )
        results = predict_words(model, images, labels.split(","), top=top)
    elif labels is not None:
        raise DataError("--labels is for runs of the recipe align.", got=f"--labels {labels}.", hint="no --labels.")
    else:
        results = predict(model, images, weights=weights, top=top, batch_size=batch_size, copy_to=copy_to)
    num = num_errors = num_unknown = 0
    write = _writer("json" if as_json else form)
    last = time.monotonic()
    for result in _close_on_error(results, write):
        write(result)
        if time.monotonic() - last > PROGRESS_SECONDS and not sys.stdout.isatty():  # a terminal shows the rows
            last = time.monotonic()
            remark(f"{num:,} {noun}s so far", quiet=quiet)
        num += 1
        num_errors += result.error is not None
        num_unknown += result.prediction is not None and result.prediction.unknown
    write(None)
    count = f"1 {noun}" if num == 1 else f"{num:,} {noun}s"
    remark(f"{count}, {num_unknown:,} unknown, {num_errors:,} unreadable.", quiet=quiet)
    if num == num_errors:
        raise typer.Exit(2)


def _fill_gaps(model: str, texts: list[str], top: int, form: str, *, as_json: bool) -> None:
    """Predict the hidden tokens of texts."""
    from vitrail.data.text.argument import read_argument
    from vitrail.verbs.predict import predict_texts

    filled = predict_texts(model, [read_argument(text).text.removesuffix("\n") for text in texts], top=top)
    documents: list[dict[str, Any]] = [
        {
            "text": each.text,
            "filled": each.filled,
            "masks": [[dict(zip(("token", "probability"), row, strict=True)) for row in mask] for mask in each.masks],
        }
        for each in filled
    ]
    if as_json:
        print_json(documents)
    elif form == "jsonl":
        for document in documents:
            print(json.dumps(document, ensure_ascii=False))
    elif form == "csv":
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(["text", "mask", "token", "probability"])
        for each in filled:
            for number, mask in enumerate(each.masks, start=1):
                table.writerows([each.text, number, *row] for row in mask)
    else:
        for each in filled:
            print(printable(each.filled))
            for mask in each.masks:
                print(
                    "  "
                    + ", ".join(f"{printable(token.strip())} {percent(probability)}" for token, probability in mask)
                )


def _close_on_error(results: Iterator[ImageResult], write: Any) -> Iterator[ImageResult]:
    """The results; if an error ends them early, the document is closed first."""
    started = False
    try:
        for result in results:
            started = True
            yield result
    except VitrailError:
        if started:
            write(None)
        raise


def _writer(form: str) -> Any:
    """A function that prints results as they come, and closes the document when called with None."""
    if form == "csv":
        return _CsvTable()
    if form == "jsonl":
        return lambda result: None if result is None else print(json.dumps(document(result)))
    if form == "json":
        return _JsonList()
    return lambda result: None if result is None else print(_line(result))


class _CsvTable:
    """CSV rows; the header waits for the first prediction, whose kind decides the columns, or for the end."""

    def __init__(self) -> None:
        self.table = csv.writer(sys.stdout, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        self.waiting: list[ImageResult] = []
        self.columns: tuple[str, ...] = ()

    def __call__(self, result: ImageResult | None) -> None:
        if result is not None:
            self.waiting.append(result)
            if result.prediction is None and not self.columns:
                return
        if not self.waiting:
            return
        if not self.columns:
            prediction = self.waiting[-1].prediction
            self.columns = CLASS_COLUMNS if prediction is None else tuple(prediction.cells)
            self.table.writerow(["path", *self.columns, "error"])
        for each in self.waiting:
            cells = {} if each.prediction is None else each.prediction.cells
            self.table.writerow([each.path, *(cells.get(name, "") for name in self.columns), each.error or ""])
        self.waiting.clear()


class _JsonList:
    """One JSON list of all results, written as they come."""

    def __init__(self) -> None:
        self.before = "["

    def __call__(self, result: ImageResult | None) -> None:
        if result is None:
            print("[]" if self.before == "[" else "\n]")
            return
        print(f"{self.before}\n  {json.dumps(document(result))}", end="")
        self.before = ","


def document(result: ImageResult) -> dict[str, Any]:
    """A result as a JSON object."""
    if result.prediction is None:
        return {"path": result.path, "error": result.error}
    return {"path": result.path, **result.prediction.document()}


def _line(result: ImageResult) -> str:
    if result.prediction is None:
        return f"{'error':>8}  {printable(result.path)}: {printable(result.error or '')}"
    return f"{result.prediction.line}  {printable(result.path)}"
