"""`vitrail convert`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, remark


def command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A weight file, a folder, or a Hugging Face Hub name.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="google, hf, timm or torchvision.")],
    out: Annotated[Path, typer.Option(help="A file, or a folder for the weights and their config.json.")],
    model: Annotated[str | None, typer.Option(help="The model, if the shapes alone do not identify it.")] = None,
    image_size: Annotated[
        str | None, typer.Option(metavar="ROWSxCOLUMNS", help="The image size, if it differs from the one in the name.")
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Convert weights between formats.

    Google (npz), timm, Hugging Face and torchvision, in every direction.
    """
    from vitrail.verbs.convert import convert

    size = None
    if image_size is not None:
        match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", image_size)
        if match is None:
            raise typer.BadParameter("use ROWSxCOLUMNS, such as 160x288.", param_hint="--image-size")
        size = (int(match[1]), int(match[2] or match[1]))
    result = convert(source, to=to.lower(), out=out, model=model, image_size=size)
    if as_json:
        print_json(result._asdict())
    elif not quiet:
        for other in result.also:
            remark(f"Note: {other} has the same shapes; choose one with --model.", quiet=quiet)
        print(f"{result.model}: {result.num_tensors} tensors, {result.from_format} to {result.to_format}")
        for file in result.files:
            print(f"  {file}")
