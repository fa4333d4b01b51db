"""`vitrail evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitrail.console import (
    DataDirOption,
    JsonFlag,
    ModelArgument,
    QuietFlag,
    WeightsOption,
    print_json,
    progress_bar,
    remark,
)
from vitrail.errors import shown


def command(
    model: ModelArgument,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder, zip, table, array file, shards, or a known name.")
    ],
    weights: WeightsOption = None,
    real: Annotated[Path | None, typer.Option(help="real.json, for ReaL accuracy on ImageNet.")] = None,
    split: Annotated[str | None, typer.Option(help="train, val or test; if not given, test, else val.")] = None,
    data_dir: DataDirOption = None,
    on_error: Annotated[
        Literal["error", "skip"], typer.Option(help="A picture that cannot be read: error to stop, skip to leave out.")
    ] = "error",
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    predictions: Annotated[bool, typer.Option(help="Each picture's predicted class too.")] = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Accuracy with its interval, and calibration, on pictures whose classes are known.

    For ImageNet models the classes may be named by class index, WordNet id or class name.
    """
    from vitrail.verbs.evaluate import evaluate

    with progress_bar("Evaluating", quiet=quiet) as progress:
        result = evaluate(
            model,
            data,
            weights=weights,
            real=real,
            split=split,
            data_dir=data_dir,
            policy=on_error,
            batch_size=batch_size,
            progress=progress,
        )
    if result.split is not None:
        remark(f"Judged on the split {result.split}.", quiet=quiet)
    for problem in result.skipped:
        remark(shown(f"Left out: {problem}"), quiet=quiet)
    for change in result.changes:
        remark(f"Note: {change}.", quiet=quiet)
    document = {**result._asdict(), "preprocess": result.preprocess.model_dump(mode="json")}
    if not predictions:
        del document["predictions"]
    if as_json:
        print_json(document)
        return
    low, high = result.interval
    if predictions:
        for path, label in result.predictions:
            print(f"{label}\t{path}")
    pictures = "1 picture" if result.n == 1 else f"{result.n} pictures"
    print(f"top-1   {result.top1:7.2%}   (95 % interval {low:.2%} to {high:.2%}, {pictures})")
    print(f"top-5   {result.top5:7.2%}")
    if result.real_top1 is not None:
        print(f"ReaL    {result.real_top1:7.2%}")
    print(f"ECE     {result.ece:7.2%}   (mean gap between confidence and accuracy)")
