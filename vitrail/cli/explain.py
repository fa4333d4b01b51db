"""`vitrail explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import JsonFlag, ModelArgument, QuietFlag, WeightsOption, print_json, progress_bar
from vitrail.errors import printable


def command(
    model: ModelArgument,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Images, folders or zips of images; one page per image.")
    ],
    weights: WeightsOption = None,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("explained"),
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="A class to explain, by name or number; repeatable. Default: the top classes."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="rollout, relevance or gradcam; repeatable. Default: all.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=20, help="How many of the top classes to explain.")] = 5,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Show what a model attends to in an image.

    Makes an interactive offline page and a figure.
    """
    from vitrail.verbs.explain import explain

    with progress_bar("Explaining", quiet=quiet) as progress:
        written = explain(
            model, images, weights=weights, out=out, classes=classes, methods=method, top=top, progress=progress
        )
    if as_json:
        files = [str(path) for each in written for path in (each.page, each.still)]
        explained = [{**each._asdict(), "page": str(each.page), "still": str(each.still)} for each in written]
        print_json({"files": files, "pictures": explained})
        return
    for each in written:
        print(f"{printable(each.image)}: {printable(each.summary)}")
        print(f"  {printable(str(each.page))}\n  {printable(str(each.still))}")
