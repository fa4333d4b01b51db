"""`vitrail bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, print_table, progress_bar, remark


def command(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="machine: what it computes fast. training: where a step's time goes. data: from files to batches.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="A folder of class folders; for training any data, digits by default."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="data: threads of Vitrail, processes of the others; 2 by default.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="training: the model; one that suits the data by default.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each contender takes its turn.")] = 5,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Measure speed on this machine, side by side with what else is installed, in one interleaved run."""
    from vitrail.verbs.bench import bench

    options = {name: value for name, value in (("workers", workers), ("model", model)) if value is not None}
    with progress_bar("Measuring", quiet=quiet) as progress:
        result = bench(workload, data, rounds=rounds, progress=progress, **options)
    for reason in result.absent:
        remark(f"Left out, {reason}", quiet=quiet)
    if as_json:
        choices = [choice._asdict() for choice in result.choices]
        print_json({**result._asdict(), "rows": [row._asdict() for row in result.rows], "choices": choices})
        return
    for name, value in result.setting.items():
        remark(f"{name.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}", quiet=quiet)
    rows = [
        [row.name, f"{row.value:,.4g} {row.unit}", f"{row.ratio:.2f}", f"{row.ratio_low:.2f} to {row.ratio_high:.2f}"]
        for row in result.rows
    ]
    print_table(["", "median", f"times {result.reference}", "over the rounds"], rows)
    if result.choices:
        print()
        print_table(["what", "chosen", "why"], [list(choice) for choice in result.choices])
