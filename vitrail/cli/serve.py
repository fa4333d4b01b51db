"""`vitrail serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.console import JsonFlag, ModelArgument, QuietFlag, WeightsOption, print_json, remark


def command(
    model: ModelArgument,
    weights: WeightsOption = None,
    host: Annotated[str, typer.Option(help="Any other address than loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token; else VITRAIL_TOKEN of the environment, if there is one.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name by which others reach it; may be given again.")
    ] = None,
    latency: Annotated[int, typer.Option(min=1, help="Milliseconds that a batch may take.")] = 250,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """A model behind HTTP, with a page: labels, confidence, unknown, and where it looks."""
    from vitrail.errors import ServeError, shown
    from vitrail.verbs.serve import serve

    token = os.environ.get("VITRAIL_TOKEN") or None
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ServeError(f"{token_file} cannot be read.", got=f"{error}.", hint="a file with one token.") from None

    def ready(address: str, facts: dict[str, Any]) -> None:
        if as_json:
            print_json({"address": address, "model": facts["name"], "version": facts["version"]})
        remark(shown(f"{facts['name']} ({facts['engine']}) at {address}; Ctrl-C stops it."), quiet=quiet)

    serve(
        model,
        weights=weights,
        host=host,
        port=port,
        token=token,
        allow_hosts=allow_host or (),
        latency=latency / 1000,
        quiet=quiet,
        ready=ready,
    )
