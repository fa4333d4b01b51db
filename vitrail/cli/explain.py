"""`vitrail explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import JsonFlag, ModelArgument, QuietFlag, WeightsOption, print_json, progress_bar
from vitrail.errors import shown


def command(
    model: ModelArgument,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Pictures, folders or zips of them; one page a picture.")
    ],
    weights: WeightsOption = None,
    out: Annotated[Path, typer.Option(help="The folder of the pages.")] = Path("explained"),
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="A class by name or number, as often as wanted; the likeliest if not given."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="rollout, relevance or gradcam, as often as wanted; all if not given.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=20, help="How many of the likeliest classes.")] = 5,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """What a model looks at in a picture: an offline page to play with, and a still picture."""
    from vitrail.verbs.explain import explain

    with progress_bar("Explaining", quiet=quiet) as progress:
        written = explain(
            model, images, weights=weights, out=out, classes=classes, methods=method, top=top, progress=progress
        )
    if as_json:
        files = [str(path) for each in written for path in (each.page, each.still)]
        pictures = [{**each._asdict(), "page": str(each.page), "still": str(each.still)} for each in written]
        print_json({"files": files, "pictures": pictures})
        return
    for each in written:
        label, odds = max(each.classes, key=lambda told: told[1])
        print(f"{shown(each.image)}: {shown(label)}, {odds:.1%}\n  {shown(str(each.page))}\n  {shown(str(each.still))}")
