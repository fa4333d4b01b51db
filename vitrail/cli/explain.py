"""`vitrail explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.console import JsonFlag, ModelArgument, QuietFlag, WeightsOption, print_json, progress_bar
from vitrail.errors import printable

if TYPE_CHECKING:
    from vitrail.verbs.explain import ExplainedClip, ExplainedImage, ExplainedText

KEYS = {"image": "pictures", "clip": "clips", "text": "texts"}
"""Of the JSON document, by what was explained."""


def command(
    model: ModelArgument,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Images, folders or zips of images; for a run on clips, sounds or videos; for a run on text, texts in "
            "quotes, .txt files or - for a pipe. One page for each.",
        ),
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
    top: Annotated[int, typer.Option(min=1, max=20, help="How many of the top classes or tokens to explain.")] = 5,
    to: Annotated[str | None, typer.Option(help="The language that a translator translates to.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Show what a model attends to in an image, a clip or a text.

    Makes an interactive offline page and a figure.
    """
    from vitrail.verbs.explain import explain

    with progress_bar("Explaining", quiet=quiet) as progress:
        written = explain(
            model, inputs, weights=weights, out=out, classes=classes, methods=method, top=top, to=to, progress=progress
        )
    if as_json:
        files = [str(path) for each in written for path in (each.page, each.still)]
        key = KEYS[written[0]._fields[0]] if written else KEYS["image"]
        print_json({"files": files, key: [_as_json(each) for each in written]})
        return
    for each in written:
        print(f"{printable(each[0])}: {printable(each.summary)}")
        print(f"  {printable(str(each.page))}\n  {printable(str(each.still))}")


def _as_json(explained: ExplainedImage | ExplainedClip | ExplainedText) -> dict[str, Any]:
    fields = {**explained._asdict(), "page": str(explained.page), "still": str(explained.still)}
    if "predictions" in fields:
        fields["predictions"] = [
            {
                "place": each.place,
                "tokens": [{**token._asdict(), "probability": probability} for token, probability in each.tokens],
            }
            for each in fields["predictions"]
        ]
    return fields
