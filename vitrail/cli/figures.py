"""`vitrail figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import DataDirOption, JsonFlag, ModelArgument, QuietFlag, WeightsOption, print_json, progress_bar


def command(
    model: ModelArgument,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Pictures to draw from; without them, what needs none.")
    ] = None,
    weights: WeightsOption = None,
    out: Annotated[Path, typer.Option(help="The folder of the figures.")] = Path("figures"),
    only: Annotated[list[str] | None, typer.Option(help="A figure by name, as often as wanted.")] = None,
    pictures: Annotated[int, typer.Option(min=1, help="How many pictures are drawn from.")] = 128,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """The paper's figures of a model, as PNG, SVG and CSV, and a page that explains them."""
    from vitrail.verbs.figures import figures

    with progress_bar("Drawing", quiet=quiet) as progress:
        written = figures(
            model,
            data,
            weights=weights,
            out=out,
            names=only,
            num_images=pictures,
            data_dir=data_dir,
            progress=progress,
        )
    if as_json:
        print_json({"files": [str(path) for path in written]})
        return
    for path in written:
        print(path)
