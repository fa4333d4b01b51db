"""`vitrail evaluate`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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

if TYPE_CHECKING:
    from vitrail.verbs.evaluate import Evaluation

WORST = 3  # classes, and confusions, that are named


def command(
    model: ModelArgument,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder, zip, table, array file, shards, or a known name.")
    ],
    weights: WeightsOption = None,
    compare: Annotated[str | None, typer.Option(help="Another MODEL, judged on the same pictures.")] = None,
    tta: Annotated[bool, typer.Option("--tta", help="Look at each picture mirrored too (not for letters).")] = False,
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
            compare=compare,
            tta=tta,
            real=real,
            split=split,
            data_dir=data_dir,
            policy=on_error,
            batch_size=batch_size,
            progress=progress,
        )
    if result.split is not None:
        remark(f"Judged on the split {result.split}.", quiet=quiet)
    if result.learned_from:
        remark("Note: the model was trained on these pictures, so the scores say nothing of others.", quiet=quiet)
    for problem in result.skipped:
        remark(shown(f"Left out: {problem}"), quiet=quiet)
    for change in result.changes:
        remark(f"Note: {change}.", quiet=quiet)
    if as_json:
        print_json(_document(result, predictions=predictions))
        return
    if predictions:
        for path, label in result.predictions:
            print(f"{label}\t{path}")
    _print(result)
    if compare is not None:
        _print_compared(result, compare)


def _document(result: Evaluation, *, predictions: bool) -> dict[str, Any]:
    """The result as JSON has it."""
    document = {
        **{field.name: getattr(result, field.name) for field in fields(result) if field.name != "rows"},
        "preprocess": result.preprocess.model_dump(mode="json"),
        "bins": [each._asdict() for each in result.bins],
        "uncalibrated_bins": [each._asdict() for each in result.uncalibrated_bins],
        "classes": [each._asdict() for each in result.classes],
        "compared": None if result.compared is None else {**result.compared._asdict(), "real": result.compared.real},
    }
    if not predictions:
        del document["predictions"]
    return document


def _print(result: Evaluation) -> None:
    low, high = result.interval
    pictures = "1 picture" if result.n == 1 else f"{result.n:,} pictures"
    print(f"top-1    {result.top1:7.2%}   (95 % interval {low:.2%} to {high:.2%}, {pictures})")
    print(f"top-5    {result.top5:7.2%}")
    if result.map is not None and result.map_interval is not None:
        low, high = result.map_interval
        print(f"mAP      {result.map:7.2%}   (mean average precision over labels; {low:.2%} to {high:.2%})")
    if result.real_top1 is not None:
        print(f"ReaL     {result.real_top1:7.2%}")
    if result.balanced is not None and result.balanced_interval is not None:
        low, high = result.balanced_interval
        print(f"balanced {result.balanced:7.2%}   (every class counts the same; {low:.2%} to {high:.2%})")
    print(
        f"ECE      {result.ece:7.2%}   (mean gap between confidence and accuracy; {result.uncalibrated_ece:.2%} before "
        f"calibration; a perfect one stays below {result.ece_noise:.2%} here)"
    )
    print(f"Brier    {result.brier:7.4f}")
    print(f"unknown  {result.unknown:7.2%}   (called unlike all that the model knows)")
    scored = [each for each in result.classes if each.n and each.f1 is not None]
    if len(scored) > 2:
        worst = sorted(scored, key=lambda each: each.f1 or 0.0)[:WORST]
        print("worst    " + ", ".join(f"{shown(each.label)} (F1 {each.f1:.0%})" for each in worst))
    if result.confused:
        pairs = (f"{shown(truth)} for {shown(called)} ({count})" for truth, called, count in result.confused[:WORST])
        print("confused " + ", ".join(pairs))


def _print_compared(result: Evaluation, other: str) -> None:
    told = result.compared
    assert told is not None
    low, high = told.interval
    verdict = "more than luck explains" if told.real else "no more than luck may give"
    print(
        f"against {shown(other)}: {told.difference:+.2%} (95 % interval {low:+.2%} to {high:+.2%}), {verdict} "
        f"(p = {told.p_value:.2g}); only this one is right on {told.only_second}, only the other on {told.only_first}"
    )
