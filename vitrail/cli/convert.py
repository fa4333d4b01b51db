"""`vitrail convert`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, remark


def command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A weight file, a folder, or a name on the hub.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="google, hf, timm or torchvision.")],
    out: Annotated[Path, typer.Option(help="A file, or a folder for weights with their config.json.")],
    model: Annotated[str | None, typer.Option(help="The model, where shapes alone do not tell.")] = None,
    image_size: Annotated[
        str | None, typer.Option(metavar="ROWSxCOLUMNS", help="Where it is another than the name says.")
    ] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Weights from one format to another: Google's npz, timm, Hugging Face, torchvision."""
    from vitrail.verbs.convert import convert

    size = None
    if image_size is not None:
        match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", image_size)
        if match is None:
            raise typer.BadParameter("rows x columns, such as 160x288.", param_hint="--image-size")
        size = (int(match[1]), int(match[2] or match[1]))
    result = convert(source, to=to.lower(), out=out, model=model, image_size=size)
    if as_json:
        print_json(result._asdict())
    elif not quiet:
        for other in result.also:
            remark(f"Note: {other} has the same shapes; --model says which one it is.", quiet=quiet)
        print(f"{result.model}: {result.num_tensors} tensors, {result.from_format} to {result.to_format}")
        for file in result.files:
            print(f"  {file}")
