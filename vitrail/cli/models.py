"""`vitrail models`."""

from __future__ import annotations

from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, print_table

SettingsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the models (model.attention=local).")
]


def command(
    pattern: Annotated[str, typer.Argument(metavar="[FILTER]", help="Part of a name, or a full name.")] = "",
    settings: SettingsArgument = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,  # noqa: ARG001 - every verb takes it; this one prints no remarks
) -> None:
    """List the models of the catalogue.

    Parameters, cost, tokens, input size and known weights of every model.

    GFLOPs are twice the multiply-adds for one image. A full name also lists the names of its weights, and what larger
    images cost.
    """
    from vitrail.verbs.models import models

    entries = models(pattern, settings=settings or [])
    if as_json:
        print_json([{**entry._asdict(), "costs": [cost._asdict() for cost in entry.costs]} for entry in entries])
        return
    rows = [
        [
            entry.name,
            f"{entry.params / 1e6:,.1f} M",
            _format_gflops(entry.gflops),
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
        costs = [
            [f"{each.image_size} px", f"{each.tokens:,}", _format_gflops(each.gflops)] for each in entries[0].costs
        ]
        if costs:
            print()
            print_table(["at", "tokens", "GFLOPs"], costs)


def _format_gflops(value: float) -> str:
    return f"{value:,.1f}" if value >= 0.1 else f"{value:.3f}"
