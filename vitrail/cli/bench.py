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
            help="machine: fast number formats and kernels. training: time per part of a step. data: files to batches.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="data: a folder of class folders. training: any data; digits by default."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="data: worker threads of Vitrail, processes of others; 2 by default.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="training: the model; one that suits the data by default.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of each measurement.")] = 5,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Measure speed on this machine.

    `data` is compared with other installed libraries, interleaved, so that all share the same conditions.
    """
    from vitrail.verbs.bench import bench

    options = {name: value for name, value in (("workers", workers), ("model", model)) if value is not None}
    with progress_bar("Measuring", quiet=quiet) as progress:
        result = bench(workload, data, rounds=rounds, progress=progress, **options)
    for reason in result.absent:
        remark(f"Skipped {reason}", quiet=quiet)
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
    print_table(["", "median", f"relative to {result.reference}", "range over rounds"], rows)
    if result.choices:
        print()
        print_table(["what", "chosen", "why"], [list(choice) for choice in result.choices])
