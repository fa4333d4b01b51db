"""`vitrail train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import DataDirOption, JsonFlag, QuietFlag, print_json
from vitrail.live import duration, live_view


def command(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder, zip, table, array file, shards, or a known name.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings of the recipe (lr=3e-4) or of the model (model.depth=6)."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A name of the catalogue; told by the weights if not given.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="What to start from: a weight file, a run, or a name on the hub.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="auto, probe, finetune or scratch.")] = "auto",
    minutes: Annotated[float | None, typer.Option(help="The time for all of it; 10 if no length is given.")] = None,
    run: Annotated[Path | None, typer.Option(help="The directory of the run; runs/DATA-RECIPE if not given.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same run.")] = 0,
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
    from vitrail.verbs.train import train

    with live_view(quiet=quiet) as view:
        result = train(
            data,
            model=model,
            weights=weights,
            recipe=recipe,
            minutes=minutes,
            run=run,
            settings=settings or [],
            seed=seed,
            shard=shard,
            data_dir=data_dir,
            command=shlex.join(["vitrail", *sys.argv[1:]]),
            view=view,
        )
    if as_json:
        print_json(result._asdict())
        return
    for line in result.story:
        print(line)
    for split, score in (("validation", result.val), ("test", result.test)):
        if score:
            name = "accuracy" if "top1" in score else "mean average precision"
            value = score.get("top1", score.get("map", 0.0))
            print(f"{name} {value:.2%} on {score['n']:,} {split} pictures")
    print(f"{result.steps:,} steps in {duration(result.seconds)}. The model and all about it: {result.run}")
