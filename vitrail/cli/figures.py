"""`vitrail figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import DataDirOption, JsonFlag, ModelArgument, QuietFlag, WeightsOption, print_json, progress_bar


def command(
    model: ModelArgument,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Images; without them, only the figures that need none are drawn."),
    ] = None,
    weights: WeightsOption = None,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("figures"),
    only: Annotated[list[str] | None, typer.Option(help="A figure by name; repeatable. Default: all.")] = None,
    images: Annotated[int, typer.Option(min=1, help="How many images to use.")] = 128,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Draw the figures of the ViT paper for a model.

    "An Image is Worth 16x16 Words" (arXiv 2010.11929), as PNG, SVG and CSV, with a page that explains them.
    """
    from vitrail.verbs.figures import figures

    with progress_bar("Drawing", quiet=quiet) as progress:
        written = figures(
            model,
            data,
            weights=weights,
            out=out,
            names=only,
            num_images=images,
            data_dir=data_dir,
            progress=progress,
        )
    if as_json:
        print_json({"files": [str(path) for path in written]})
        return
    for path in written:
        print(path)
