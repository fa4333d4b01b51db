"""`vitrail bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, print_table, progress_bar, remark


def command(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="data: from files to batches.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="What to run it on: a folder of class folders.")],
    workers: Annotated[int, typer.Option(min=0, help="Threads of Vitrail's, processes of the others.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="How often each contender takes its turn.")] = 5,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Speed, side by side with what else is installed, in one interleaved run."""
    from vitrail.verbs.bench import bench

    with progress_bar("Measuring", quiet=quiet) as progress:
        result = bench(workload, data, workers=workers, rounds=rounds, progress=progress)
    for reason in result.absent:
        remark(f"Left out, {reason}", quiet=quiet)
    if as_json:
        print_json({**result._asdict(), "rows": [row._asdict() for row in result.rows]})
        return
    rows = [
        [row.name, f"{row.value:,.0f} {row.unit}", f"{row.ratio:.2f}", f"{row.ratio_low:.2f} to {row.ratio_high:.2f}"]
        for row in result.rows
    ]
    print_table(["", "median", f"times {result.reference}", "over the rounds"], rows)
