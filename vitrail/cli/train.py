"""`vitrail train`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.console import DataArgument, DataDirOption, JsonFlag, QuietFlag, print_json, print_wrapped
from vitrail.percent import percent, percent_range
from vitrail.progress import duration, progress_view

SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings of the recipe (lr=0.0003) or of the model (model.depth=6)."),
]
ModelOption = Annotated[
    str | None, typer.Option(help="A model of the catalogue; by default inferred from the weights or data.")
]
WeightsOption = Annotated[
    str | None, typer.Option(help="What to start from: a weight file, a run, or a Hugging Face Hub name.")
]
MinutesOption = Annotated[float | None, typer.Option(help="The time for the whole command; 10 by default.")]
RunOption = Annotated[Path | None, typer.Option(help="The run directory; runs/DATA-RECIPE by default.")]
TargetOption = Annotated[
    str | None,
    typer.Option(help="Predict a number: this column of a table, or the number that each class folder is named by."),
]
FoldsOption = Annotated[
    int | None,
    typer.Option(
        help="Cross-validation: also train this many models, so that every image gets an out-of-fold prediction."
    ),
]
RecipeOption = Annotated[
    str,
    typer.Option(
        help="auto, probe, finetune, scratch, pretrain, distill or noisy_student; for text language, masked_language "
        "or translate."
    ),
]
TeacherOption = Annotated[
    str | None, typer.Option(help="For distill: the model to learn from; a run, an exported model or a weight file.")
]
UnlabelledOption = Annotated[
    str | None, typer.Option(help="For auto and noisy_student: a folder or zip of images without labels, or any data.")
]
DryRunFlag = Annotated[bool, typer.Option("--dry-run", help="Run everything on a few images and print a forecast.")]
FindLrFlag = Annotated[bool, typer.Option("--find-lr", help="Find a learning rate.")]


def command(
    data: DataArgument,
    settings: SettingsArgument = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    recipe: RecipeOption = "auto",
    teacher: TeacherOption = None,
    unlabelled: UnlabelledOption = None,
    minutes: MinutesOption = None,
    run: RunOption = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same run.")] = 0,
    target: TargetOption = None,
    folds: FoldsOption = None,
    dry_run: DryRunFlag = False,
    find_lr: FindLrFlag = False,
    shard: Annotated[bool, typer.Option("--shard", help="Under torchrun: shard the model (FSDP2).")] = False,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Train the best model in the time you have: a classifier, a regression, a language model, a translator.

    Ctrl-C saves and stops; the same command resumes.
    """
    from vitrail.training.clock import process_start
    from vitrail.training.world import is_rank_zero
    from vitrail.verbs.train import find_lr as find
    from vitrail.verbs.train import train

    options: dict[str, Any] = {"model": model, "weights": weights, "recipe": recipe, "seed": seed, "target": target}
    options |= {"settings": settings or [], "teacher": teacher, "unlabelled": unlabelled}
    with progress_view(quiet=quiet or not is_rank_zero()) as view:
        result: Any = (
            find(data, **options, data_dir=data_dir, view=view)
            if find_lr
            else train(
                data,
                **options,
                minutes=minutes,
                run=run,
                folds=folds,
                dry_run=dry_run,
                shard=shard,
                data_dir=data_dir,
                command=shlex.join(["vitrail", *sys.argv[1:]]),
                started=process_start(),
                view=view,
            )
        )
    if not is_rank_zero():  # under torchrun, only rank 0 prints the result
        return
    if as_json:
        print_json(result._asdict())
    elif find_lr:
        _print_rates(result)
    else:
        _print_result(result, scores=not dry_run)


def _print_rates(rates: Any) -> None:
    for rate, loss in rates.tried[:: max(1, len(rates.tried) // 20)]:
        print(f"lr={rate:<10.2e} loss {loss:.3f}")
    print(f"Try lr={rates.lr:.1e}")


def _describe_score(split: str, score: dict[str, Any], noun: str) -> str:
    """A score, what it was measured on and its interval, for people."""
    if "loss" in score or "directions" in score:
        return _describe_text_score(split, score) if "loss" in score else _describe_directions(split, score)
    samples = f"training {noun}, by cross-validation" if score.get("cross_validated") else f"{split} {noun}"
    num = f" on {score['n']:,} {samples}"
    if "masked_loss" in score:
        value = f"loss {score['masked_loss']:.4g} on hidden patches{num}"
        if score["knn"] is None:
            return value
        return f"{value}; nearest neighbours {percent(score['knn'])}, linear model {percent(score['linear'])}"
    if "mae" in score:
        if score["mae"] is None:
            return f"no finite predictions{num}"
        interval = _describe_interval(score["interval"], lambda ends: f"{ends[0]:.4g} to {ends[1]:.4g}")
        r2 = "" if score["r2"] is None else f", R2 {score['r2']:.3f}"
        return f"mean absolute error {score['mae']:.4g}{num}{interval}{r2}"
    name = "accuracy" if "top1" in score else "mean average precision"
    value = score.get("top1", score.get("map", 0.0))
    return f"{name} {percent(value, 2)}{num}" + _describe_interval(
        score.get("interval"), lambda ends: percent_range(ends, 2)
    )


def _describe_directions(split: str, score: dict[str, Any]) -> str:
    return "\n".join(
        f"{each['from']} to {each['to']}: recall at 1 {percent(each['recall'])} on {each['n']:,} {split} samples"
        f"{_describe_interval(each['interval'], percent_range)}, {percent(each['chance'])} by chance"
        for each in score["directions"]
    )


def _describe_text_score(split: str, score: dict[str, Any]) -> str:
    if "languages" in score:
        return "; ".join(_describe_translations(split, *each) for each in score["languages"].items())
    if "baselines" in score:
        interval = _describe_interval(score["accuracy_interval"], percent_range)
        unigram, trigram = (percent(score["baselines"][name]["accuracy"]) for name in ("unigram", "trigram"))
        value = f"accuracy {percent(score['accuracy'])} on {score['n']:,} masked {split} tokens"
        return f"{value}{interval}; most frequent token {unigram}, by neighbours {trigram}"
    if score["loss"] is None:
        return f"no finite loss on {score['n']:,} {split} tokens"
    value = f"{score['loss']:.3f} nats per token ({score['bits']:.3f} bits) on {score['n']:,} {split} tokens"
    return value + _describe_interval(score["interval"], lambda ends: f"{ends[0]:.3f} to {ends[1]:.3f}")


def _describe_interval(interval: Sequence[float] | None, describe: Callable[[Sequence[float]], str]) -> str:
    return "" if interval is None else f" (95 % interval {describe(interval)})"


def _describe_translations(split: str, language: str, score: dict[str, Any]) -> str:
    interval = _describe_interval(score["interval"], lambda ends: f"{ends[0]:.1f} to {ends[1]:.1f}")
    value = f"BLEU {score['bleu']:.1f} ({language}) on {score['n']:,} {split} sentences"
    return f"{value}{interval}, chrF {score['chrf']:.1f}"


def _print_result(result: Any, *, scores: bool) -> None:
    for line in result.story:
        print_wrapped(line)
    if not scores:
        return
    for split, score in (("validation", result.val), ("test", result.test)):
        if score:
            print_wrapped(_describe_score(split, score, "clips" if result.samples_per_second else "images"))
    if result.folds:
        folds = result.folds
        print(
            f"out of fold: {percent(folds['mean'], 2)} on average over {folds['k']} folds, standard deviation "
            f"{percent(folds['spread'], 2)}, {folds['n']:,} images, {duration(folds['seconds'])}; "
            f"labels that may be wrong: {folds['suspects']:,}"
        )
    steps = f"{result.steps:,} steps in " if result.steps else ""
    print(f"{steps}{duration(result.seconds)}. Model: {result.run}")
    print(f"Report: {result.run / 'report.html'}")
