"""`vitrail evaluate`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrail.console import (
    DataArgument,
    DataDirOption,
    JsonFlag,
    ModelArgument,
    QuietFlag,
    WeightsOption,
    print_json,
    print_table,
    progress_bar,
    remark,
)
from vitrail.errors import printable
from vitrail.percent import percent, percent_range

if TYPE_CHECKING:
    from vitrail.kind.regression import NumberEvaluation
    from vitrail.training.recipe.several.retrieval import AlignedEvaluation
    from vitrail.training.recipe.text.evaluation import TextEvaluation
    from vitrail.verbs.evaluate import Evaluation

NUM_WORST = 3  # classes, and confusions, to print


def command(
    model: ModelArgument,
    data: DataArgument,
    weights: WeightsOption = None,
    compare: Annotated[str | None, typer.Option(help="Another MODEL to evaluate on the same images.")] = None,
    tta: Annotated[
        bool,
        typer.Option("--tta", help="Test-time augmentation: average with the mirrored image. Not for text or digits."),
    ] = False,
    real: Annotated[Path | None, typer.Option(help="real.json, for ReaL accuracy on ImageNet.")] = None,
    split: Annotated[str | None, typer.Option(help="train, val or test; by default test, else val.")] = None,
    data_dir: DataDirOption = None,
    on_error: Annotated[
        Literal["error", "skip"], typer.Option(help="What to do with an unreadable image: stop, or skip it.")
    ] = "error",
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    predictions: Annotated[bool, typer.Option(help="Print each image's predicted class too.")] = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Measure accuracy and calibration on labelled images, or the loss or BLEU of a model of text.

    For ImageNet models the classes may be named by class index, WordNet id or class name.
    """
    from vitrail.kind.regression import NumberEvaluation
    from vitrail.training.recipe.several.retrieval import AlignedEvaluation
    from vitrail.training.recipe.text.evaluation import TextEvaluation
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
    if isinstance(result, AlignedEvaluation | TextEvaluation):
        show: Any = _print_directions if isinstance(result, AlignedEvaluation) else _print_text
        show(result, as_json=as_json, quiet=quiet)
        return
    if isinstance(result, NumberEvaluation):
        _print_numbers(result, as_json=as_json, predictions=predictions, quiet=quiet)
        return
    _print_remarks(result, _noun(result), quiet=quiet)
    if as_json:
        print_json(_document(result, predictions=predictions))
        return
    if predictions:
        for path, index in result.predictions:
            print(f"{index}\t{path}")
    _print(result)
    if compare is not None:
        _print_comparison(result, compare)


def _print_remarks(result: Evaluation | NumberEvaluation, noun: str, *, quiet: bool) -> None:
    if result.split is not None:
        remark(f"Evaluated on the {result.split} split.", quiet=quiet)
    if result.learned_from:
        remark(f"Note: the model was trained on these {noun}s, so the scores say nothing about others.", quiet=quiet)
    for problem in result.skipped:
        remark(printable(f"Left out: {problem}"), quiet=quiet)
    for change in result.changes:
        remark(f"Note: {change}.", quiet=quiet)


def _print_directions(result: AlignedEvaluation, *, as_json: bool, quiet: bool) -> None:
    if result.split is not None:
        remark(f"Evaluated on the {result.split} split.", quiet=quiet)
    if result.learned_from:
        remark("Note: the model was trained on these samples, so the scores say nothing about others.", quiet=quiet)
    for problem in result.skipped:
        remark(printable(f"Left out: {problem}"), quiet=quiet)
    if as_json:
        document = {"kind": "alignment", "split": result.split, "learned_from": result.learned_from, **result.scores}
        print_json({**document, "skipped": list(result.skipped)})
        return
    rows = [
        [
            f"{each['from']} to {each['to']}",
            percent(each["recall"]),
            percent_range(each["interval"]),
            percent(each["chance"]),
            f"{each['n']:,}",
        ]
        for each in result.scores["directions"]
    ]
    print_table(["recall at 1", "", "95 % interval", "chance", "queries"], rows)


def _print_text(result: TextEvaluation, *, as_json: bool, quiet: bool) -> None:
    scores = result.scores
    remark(
        f"Evaluated on the {result.split} split." if result.split != "all" else "Evaluated on all of it.", quiet=quiet
    )
    if result.learned_from:
        remark("Note: the model was trained on this text, so the scores say nothing about others.", quiet=quiet)
    if as_json:
        print_json({"kind": result.kind, "split": result.split, "learned_from": result.learned_from, **scores})
        return
    if result.kind == "translation":
        for language, each in scores["languages"].items():
            print(f"to {language}, {each['n']:,} sentences")
            print(f"BLEU     {each['bleu']:8.2f}   ({_range(each['interval'], 2)}{each['signature']})")
            print(f"BLEU     {each['bleu_lowercase']:8.2f}   ({each['signature_lowercase']})")
            print(f"chrF     {each['chrf']:8.2f}")
        return
    if result.kind == "masked_language":
        interval = percent_range(scores["accuracy_interval"], 2)
        print(f"accuracy {percent(scores['accuracy'], 2):>8}   (of {scores['n']:,} masked tokens; {interval})")
    print(f"loss     {scores['loss']:8.4f}   (nats per token; {_range(scores['interval'], 4)}{scores['n']:,} tokens)")
    print(f"bits     {scores['bits']:8.4f}   (per token)")


def _range(interval: list[float] | None, digits: int) -> str:
    """A 95 % interval, if there is one."""
    return "" if interval is None else f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}; "


def _document(result: Evaluation, *, predictions: bool) -> dict[str, Any]:
    """The result as a JSON object."""
    compared = result.compared
    document = {
        **{field.name: getattr(result, field.name) for field in fields(result) if field.name != "rows"},
        "preprocess": result.preprocess.model_dump(mode="json"),
        "bins": [each._asdict() for each in result.bins],
        "uncalibrated_bins": [each._asdict() for each in result.uncalibrated_bins],
        "classes": [each._asdict() for each in result.classes],
        "compared": None if compared is None else {**compared._asdict(), "real": compared.significant},
    }
    if not predictions:
        del document["predictions"]
    return document


def _print_numbers(result: NumberEvaluation, *, as_json: bool, predictions: bool, quiet: bool) -> None:
    _print_remarks(result, "image", quiet=quiet)
    if as_json:
        document = {field.name: getattr(result, field.name) for field in fields(result) if field.name != "rows"}
        rows = [row._asdict() for row in result.rows]
        print_json({**document, **({"predictions": rows} if predictions else {})})
        return
    if predictions:
        for row in result.rows:
            print(f"{row.predicted:.6g}\t{row.path}")
    low, high = result.interval
    images = "1 image" if result.n == 1 else f"{result.n:,} images"
    print(f"MAE      {result.mae:8.4g}   (mean absolute error of {printable(result.target)}; 95 % interval ", end="")
    print(f"{low:.4g} to {high:.4g}, {images})")
    print(f"mean     {result.baseline_mae:8.4g}   (the same for always predicting the mean)")
    if result.r2 is not None:
        print(f"R2       {result.r2:8.3f}   (fraction of the variance that is explained)")
    if result.coverage is not None and result.coverage_interval is not None:
        interval = percent_range(result.coverage_interval)
        print(f"in range {percent(result.coverage):>8}   (true numbers inside their predicted range; {interval})")


def _noun(result: Evaluation) -> str:
    """What was evaluated: an image, a sound or a video."""
    return result.preprocess.modality


def _print(result: Evaluation) -> None:
    count = f"1 {_noun(result)}" if result.n == 1 else f"{result.n:,} {_noun(result)}s"
    print(f"top-1    {percent(result.top1, 2):>8}   (95 % interval {percent_range(result.interval, 2)}, {count})")
    print(f"top-5    {percent(result.top5, 2):>8}")
    if result.map is not None and result.map_interval is not None:
        interval = percent_range(result.map_interval, 2)
        print(f"mAP      {percent(result.map, 2):>8}   (mean average precision over labels; {interval})")
    if result.real_top1 is not None:
        print(f"ReaL     {percent(result.real_top1, 2):>8}")
    if result.balanced is not None and result.balanced_interval is not None:
        interval = percent_range(result.balanced_interval, 2)
        print(f"balanced {percent(result.balanced, 2):>8}   (every class counts the same; {interval})")
    print(
        f"ECE      {percent(result.ece, 2):>8}   (mean gap between confidence and accuracy; "
        f"{percent(result.uncalibrated_ece, 2)} before calibration; noise level {percent(result.ece_noise, 2)})"
    )
    print(f"Brier    {result.brier:8.4f}")
    print(f"unknown  {percent(result.unknown, 2):>8}   (flagged as unlike the {_noun(result)}s that the model knows)")
    scored = [each for each in result.classes if each.n and each.f1 is not None]
    if len(scored) > 2:
        worst = sorted(scored, key=lambda each: each.f1 or 0.0)[:NUM_WORST]
        print("worst    " + ", ".join(f"{printable(each.label)} (F1 {percent(each.f1, 0)})" for each in worst))
    if result.confused:
        pairs = (
            f"{printable(label)} as {printable(predicted)} ({count})"
            for label, predicted, count in result.confused[:NUM_WORST]
        )
        print("confused " + ", ".join(pairs))


def _print_comparison(result: Evaluation, other: str) -> None:
    compared = result.compared
    assert compared is not None
    difference = percent(compared.difference, 2, signed=True)
    verdict = "significant" if compared.significant else "not significant"
    print(
        f"against {printable(other)}: {difference} (95 % interval {percent_range(compared.interval, 2, signed=True)}), "
        f"{verdict} (p = {compared.p_value:.2g}); only this model is correct on {compared.only_second} "
        f"{_noun(result)}s, only the other on {compared.only_first}"
    )
