"""`vitrail models`."""

from __future__ import annotations

from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, print_table


def command(
    pattern: Annotated[str, typer.Argument(metavar="[FILTER]", help="Part of a name, or a full name.")] = "",
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,  # noqa: ARG001 - every verb takes it; this one prints no remarks
) -> None:
    """List the models of the catalogue.

    Parameters, cost, tokens, input size and known weights of every model.

    GFLOPs are twice the multiply-adds for one image. A full name also lists the names of its weights.
    """
    from vitrail.verbs.models import models

    entries = models(pattern)
    if as_json:
        print_json([entry._asdict() for entry in entries])
        return
    rows = [
        [
            entry.name,
            f"{entry.params / 1e6:,.1f} M",
            f"{entry.gflops:,.1f}" if entry.gflops >= 0.1 else f"{entry.gflops:.3f}",
            str(entry.tokens),
            "x".join(map(str, dict.fromkeys(entry.input_size[1:]))),
            str(len(entry.checkpoints)),
        ]
        for entry in entries
    ]
    print_table(["name", "params", "GFLOPs", "tokens", "input", "weights"], rows)
    if len(entries) == 1:
        for tag in entries[0].checkpoints:
            print(f"  --weights {entries[0].name}.{tag}")
