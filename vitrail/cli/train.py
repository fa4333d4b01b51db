"""`vitrail train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.console import DataArgument, DataDirOption, JsonFlag, QuietFlag, print_json
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
DryRunFlag = Annotated[bool, typer.Option("--dry-run", help="Run everything on a few images and print a forecast.")]
FindLrFlag = Annotated[bool, typer.Option("--find-lr", help="Find a learning rate.")]


def command(
    data: DataArgument,
    settings: SettingsArgument = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    recipe: Annotated[str, typer.Option(help="auto, probe, finetune or scratch.")] = "auto",
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
    """Train the best classifier in the time you have.

    Ctrl-C saves and stops; the same command resumes.
    """
    from vitrail.training.clock import process_start
    from vitrail.training.world import is_rank_zero
    from vitrail.verbs.train import find_lr as find
    from vitrail.verbs.train import train

    options: dict[str, Any] = {"model": model, "weights": weights, "recipe": recipe, "seed": seed, "target": target}
    options["settings"] = settings or []
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


def _describe_score(score: dict[str, Any]) -> tuple[str, str]:
    """A score and its interval, for people."""
    if "mae" in score:
        if score["mae"] is None:
            return "no finite predictions", ""
        low, high = score["interval"]
        r2 = "" if score["r2"] is None else f", R2 {score['r2']:.3f}"
        return f"mean absolute error {score['mae']:.4g}", f" (95 % interval {low:.4g} to {high:.4g}){r2}"
    name = "accuracy" if "top1" in score else "mean average precision"
    value = score.get("top1", score.get("map", 0.0))
    interval = f" (95 % interval {percent_range(score['interval'], 2)})" if "interval" in score else ""
    return f"{name} {percent(value, 2)}", interval


def _print_result(result: Any, *, scores: bool) -> None:
    for line in result.story:
        print(line)
    if not scores:
        return
    for split, score in (("validation", result.val), ("test", result.test)):
        if score:
            images = "training images, by cross-validation" if score.get("cross_validated") else f"{split} images"
            value, interval = _describe_score(score)
            print(f"{value} on {score['n']:,} {images}{interval}")
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
