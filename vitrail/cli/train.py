"""`vitrail train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.console import DataDirOption, JsonFlag, QuietFlag, print_json
from vitrail.progress import duration, progress_view

DataArgument = Annotated[
    str, typer.Argument(metavar="DATA", help="A folder, zip, table, array file, shards, or a known name.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings of the recipe (lr=0.0003) or the model (model.depth=6)."),
]
ModelOption = Annotated[str | None, typer.Option(help="A name of the catalogue; told by the weights if not given.")]
WeightsOption = Annotated[str | None, typer.Option(help="To start from: a weight file, a run, or a name on the hub.")]
MinutesOption = Annotated[float | None, typer.Option(help="The time for all of it; 10 if no length is given.")]
RunOption = Annotated[Path | None, typer.Option(help="The directory of the run; runs/DATA-RECIPE if not given.")]


def command(
    data: DataArgument,
    settings: Words = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    recipe: Annotated[str, typer.Option(help="auto, probe, finetune or scratch.")] = "auto",
    minutes: MinutesOption = None,
    run: RunOption = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same run.")] = 0,
    folds: Annotated[
        int | None, typer.Option(help="Train as many more models, each without a part of the pictures, to judge all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="One batch through everything, and a forecast.")] = False,
    find_lr: Annotated[bool, typer.Option("--find-lr", help="Try learning rates and tell which suits.")] = False,
    shard: Annotated[bool, typer.Option("--shard", help="Under torchrun: cut the model in parts (FSDP2).")] = False,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """The best classifier of these pictures that this machine can give in the time.

    Ctrl-C saves and stops; the same command again goes on.
    """
    from vitrail.training.world import is_rank_zero
    from vitrail.verbs.train import find_lr as find
    from vitrail.verbs.train import train

    told: dict[str, Any] = {
        "model": model,
        "weights": weights,
        "recipe": recipe,
        "settings": settings or [],
        "seed": seed,
    }
    with progress_view(quiet=quiet or not is_rank_zero()) as view:
        result: Any = (
            find(data, **told, data_dir=data_dir, view=view)
            if find_lr
            else train(
                data,
                **told,
                minutes=minutes,
                run=run,
                folds=folds,
                dry_run=dry_run,
                shard=shard,
                data_dir=data_dir,
                command=shlex.join(["vitrail", *sys.argv[1:]]),
                view=view,
            )
        )
    if not is_rank_zero():  # one of several processes under torchrun, of which the first tells the result
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


def _print_result(result: Any, *, scores: bool) -> None:
    for line in result.story:
        print(line)
    if not scores:
        return
    for split, score in (("validation", result.val), ("test", result.test)):
        if score:
            name = "accuracy" if "top1" in score else "mean average precision"
            value = score.get("top1", score.get("map", 0.0))
            told = " (95 % interval {:.2%} to {:.2%})".format(*score["interval"]) if "interval" in score else ""
            pictures = "training pictures, by cross-validation" if score.get("cross_validated") else f"{split} pictures"
            print(f"{name} {value:.2%} on {score['n']:,} {pictures}{told}")
    if result.folds:
        told = result.folds
        print(
            f"in {told['k']} folds {told['mean']:.2%} on average, spread {told['spread']:.2%}: {told['n']:,} pictures, "
            f"each judged by a model that had not seen it, in {duration(told['seconds'])}; labels that may be wrong: "
            f"{told['suspects']:,}"
        )
    steps = f"{result.steps:,} steps in " if result.steps else ""
    print(f"{steps}{duration(result.seconds)}. The model: {result.run}")
    print(f"The report: {result.run / 'report.html'}")
