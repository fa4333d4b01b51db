"""`vitrail bench`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, print_table, progress_bar, remark
from vitrail.errors import SpecError


def command(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="machine: fast number formats and kernels. training: time per part of a step. data: files to batches. "
            "sharpness: how flat the minimum of a run is.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="data: a folder of class folders. training: any data; digits by default. sharpness: the run.",
        ),
    ] = None,
    images: Annotated[
        str | None, typer.Argument(metavar="IMAGES", help="sharpness: the data that the run was trained on.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="data: worker threads of Vitrail, processes of others; 2 by default.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="training: the model; one that suits the data by default.")] = None,
    out: Annotated[Path, typer.Option(help="sharpness: where to write the figure.")] = Path("sharpness.png"),
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of each measurement.")] = 5,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Measure speed on this machine, or the sharpness of a minimum.

    `data` is compared with other installed libraries, interleaved, so that all share the same conditions.
    """
    from vitrail.verbs.bench import bench

    if workload == "sharpness":
        _measure_sharpness(data, images, out, as_json=as_json, quiet=quiet)
        return
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


def _measure_sharpness(run: str | None, images: str | None, out: Path, *, as_json: bool, quiet: bool) -> None:
    from vitrail.verbs.bench import sharpness

    if run is None or images is None:
        raise SpecError("sharpness needs a run and data.", got="fewer.", hint="vitrail bench sharpness RUN DATA.")
    with progress_bar("Measuring", quiet=quiet) as progress:
        found = sharpness(run, images, out=out, progress=progress)
    if as_json:
        print_json({**asdict(found), "figure": str(out)})
        return
    iterations = f"{found.iterations} iterations{'' if found.converged else ', not converged'}"
    print(f"largest eigenvalue of the Hessian {found.eigenvalue:.4g} ({iterations})")
    for name, losses in (("along its eigenvector", found.worst), ("along a random direction", found.random)):
        print(f"loss {found.loss:.4g}; {max(losses):.4g} at most within {found.distances[-1]:g} {name}")
    print(f"Figure: {out}")
