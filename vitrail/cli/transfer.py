"""`vitrail transfer`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.console import DataDirOption, JsonFlag, QuietFlag, print_json, print_table, remark
from vitrail.errors import printable
from vitrail.percent import percent, percent_range
from vitrail.progress import progress_view


def command(
    weights: Annotated[
        str,
        typer.Argument(metavar="WEIGHTS", help="What to transfer: a weight file, a run, or a Hugging Face Hub name."),
    ],
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA...", help="Data sets, or NAME=DATA: CIFAR-10=cifar10.npz pets=pets.zip."),
    ],
    model: Annotated[
        str | None, typer.Option(help="A model of the catalogue; by default inferred from the weights.")
    ] = None,
    recipes: Annotated[str, typer.Option(help="probe (frozen), finetune, or both.")] = "probe,finetune",
    examples: Annotated[int, typer.Option(min=1, help="Training images of each data set; VTAB's by default.")] = 1000,
    minutes: Annotated[float, typer.Option(help="The time for each run.")] = 10.0,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, each with other training images.")] = 1,
    run: Annotated[Path, typer.Option(help="The folder of all runs.")] = Path("runs/transfer"),
    out: Annotated[Path | None, typer.Option(help="The HTML page; transfer.html in that folder by default.")] = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Transfer a backbone to many data sets, beside the results of the Vision Transformer's paper.

    The same command resumes.
    """
    from vitrail.verbs.transfer import transfer

    with progress_view(quiet=quiet) as view:
        result = transfer(
            weights,
            data,
            model=model,
            recipes=[word.strip() for word in recipes.split(",")],
            examples=examples,
            minutes=minutes,
            seeds=seeds,
            run=run,
            out=out,
            data_dir=data_dir,
            command=shlex.join(["vitrail", *sys.argv[1:]]),
            view=view,
        )
    if as_json:
        print_json(result.document())
        return
    _print_rows(result)
    remark(f"All rows, and why they differ: {result.page}", quiet=quiet)


def _print_rows(result: Any) -> None:
    """Print the rows of the paper's main table and those that were given, then the means."""
    shown = [row for row in result.rows if row.scores or row.group == "table"]
    titles = ["data set", *result.recipes, *result.columns, "why it differs"]
    rows = [
        [
            printable(row.title),
            *(
                _describe(row.scores[name].value, row.scores[name].interval) if row.scores else "-"
                for name in result.recipes
            ),
            *(percent(value) for value in row.paper),
            "; ".join(row.reasons),
        ]
        for row in shown
    ]
    for mean in result.means:
        count = f"{mean.num}" if mean.total is None else f"{mean.num} of {mean.total}"
        scores = (_describe(*mean.scores[name]) for name in result.recipes)
        rows.append([f"Mean: {mean.title} ({count})", *scores, *(percent(value) for value in mean.paper), ""])
    print_table(titles, rows)
    print(f"In every row: {'; '.join(result.reasons)}.")


def _describe(value: float, interval: tuple[float, float]) -> str:
    return f"{percent(value)} ({percent_range(interval)})"
