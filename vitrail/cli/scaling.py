"""`vitrail scaling`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.console import DataArgument, DataDirOption, JsonFlag, QuietFlag, print_json, print_table, remark
from vitrail.percent import percent, percent_range
from vitrail.progress import progress_view

if TYPE_CHECKING:
    from vitrail.verbs.scaling import Ladders


def command(
    data: DataArgument,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the recipe, such as steps=500.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="probe, finetune or scratch; probe with --weights, else scratch.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="What to start from: a weight file, a run, or a Hugging Face Hub name.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model of the catalogue; inferred from the weights.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="The time for all runs of finetune or scratch together; 10 by default.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Subsets of each size.")] = 3,
    times: Annotated[
        bool, typer.Option("--times", help="Also shorter runs on all images: what would twice the time bring?")
    ] = False,
    models: Annotated[
        str | None, typer.Option(help="Also these models, for the same time; names of the catalogue, with commas.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write an HTML page with the figure.")] = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder for the runs of finetune or scratch; runs/DATA-scaling by default.")
    ] = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Forecast the accuracy with twice the images, from a law fitted to subsets of them; also with twice the time.

    The same command resumes an interrupted one.
    """
    from vitrail.verbs.scaling import scaling

    with progress_view(quiet=quiet) as view:
        result = scaling(
            data,
            recipe=recipe,
            model=model,
            weights=weights,
            minutes=minutes,
            seeds=seeds,
            times=times,
            models=models.split(",") if models else [],
            settings=settings or [],
            out=out,
            run=run,
            data_dir=data_dir,
            view=view,
        )
    if as_json:
        print_json(result.document())
        return
    _print_ladders(result)
    if out is not None:
        remark(f"With a figure: {out}", quiet=quiet)


def _print_ladders(result: Ladders) -> None:
    """A table and its verdict for each ladder, and which of them is worth more."""
    from vitrail.metric.scaling import describe_check

    for ladder in (each for each in result if each is not None):
        rows = [
            [f"{each.name} {each.n:,}".strip(), percent(each.value), percent(each.error), str(len(each.runs))]
            for each in ladder.points
        ]
        rows += [[f"{each.n:,}", percent(each.value), percent_range(each.interval), "-"] for each in ladder.forecast]
        print_table([ladder.unit, "accuracy", "standard error, or 95 % interval", "runs"], rows)
        print(" ".join(filter(None, [ladder.verdict, describe_check(ladder)])))
    if result.comparison:
        print(result.comparison)
