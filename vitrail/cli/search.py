"""`vitrail search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, print_table, progress_bar, remark
from vitrail.errors import printable


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run of the recipe align.")],
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The path of an image, sound or video, or a text.")],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder, zip or pattern, a text file, or a table, to search in.")
    ],
    modality: Annotated[
        Literal["image", "sound", "video", "text"] | None,
        typer.Option("--in", help="What to search, if DATA has several."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many to find.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Write a page with what was found.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Find what is nearest to a query of another modality: images for a word, sounds for an image."""
    from vitrail.verbs.search import search

    with progress_bar("Searching", quiet=quiet) as progress:
        result = search(run, query, data, modality=modality, top=top, out=out, progress=progress)
    for problem in result.skipped:
        remark(printable(f"Left out: {problem}"), quiet=quiet)
    if as_json:
        found = [{"name": each.name, "similarity": round(each.similarity, 6)} for each in result.found]
        document = {"query": result.query, "from": result.query_modality, "to": result.modality, "found": found}
        print_json({**document, "searched": result.num_searched, "skipped": list(result.skipped)})
        return
    rows = [[str(place), f"{each.similarity:.3f}", printable(each.name)] for place, each in enumerate(result.found, 1)]
    print_table(["", "similarity", result.modality], rows)
    if result.page is not None:
        remark(f"With images: {result.page}", quiet=quiet)
