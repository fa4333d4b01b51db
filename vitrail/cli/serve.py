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
    host: Annotated[
        str, typer.Option(help="Address to listen on; any other than loopback requires a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File that contains the token. Default: the environment variable VITRAIL_TOKEN.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Host name under which clients reach the service; repeatable.")
    ] = None,
    latency: Annotated[int, typer.Option(min=1, help="Target time for a batch in milliseconds.")] = 250,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Serve a model over HTTP, with a web page."""
    from vitrail.errors import ServeError, printable
    from vitrail.verbs.serve import serve

    token = os.environ.get("VITRAIL_TOKEN") or None
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ServeError(
                f"{token_file} cannot be read.", got=f"{error}.", hint="a file that contains one token."
            ) from None

    def on_ready(address: str, facts: dict[str, Any]) -> None:
        if as_json:
            print_json({"address": address, "model": facts["name"], "version": facts["version"]})
        remark(printable(f"{facts['name']} ({facts['engine']}) at {address}; press Ctrl-C to stop."), quiet=quiet)

    serve(
        model,
        weights=weights,
        host=host,
        port=port,
        token=token,
        allow_hosts=allow_host or (),
        latency=latency / 1000,
        quiet=quiet,
        on_ready=on_ready,
    )
