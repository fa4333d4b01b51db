"""`vitrail compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, print_table, remark
from vitrail.errors import shown
from vitrail.progress import duration


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="The directories of two runs or more.")],
    out: Annotated[Path, typer.Option(help="The page that is written.")] = Path("compare.html"),
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Runs side by side: their scores, what differs in their settings, and whether the difference is luck."""
    from vitrail.verbs.compare import compare

    result = compare(runs, page=out)
    if as_json:
        print_json(
            {
                "page": out,
                "runs": [each._asdict() for each in result.entries],
                "pairs": [
                    {**each._asdict(), "paired": None if each.paired is None else each.paired._asdict()}
                    for each in result.pairs
                ],
                "differences": result.differences,
            }
        )
        return
    rows = [
        [
            shown(each.name),
            f"{each.score:.2%}",
            f"{each.interval[0]:.2%} to {each.interval[1]:.2%}",
            f"{each.n:,} {each.split}",
            duration(each.seconds),
        ]
        for each in result.entries
    ]
    print_table(["run", "score", "95 % interval", "pictures", "time"], rows)
    for pair in result.pairs:
        if pair.paired is None:
            print(f"{shown(pair.name)}: judged on other pictures, so it cannot be told whether it is better.")
            continue
        low, high = pair.paired.interval
        verdict = "more than luck explains" if pair.real else "no more than luck may give"
        print(
            f"{shown(pair.name)}: {pair.paired.difference:+.2%} ({low:+.2%} to {high:+.2%}) on {pair.n:,} pictures, "
            f"{verdict} (p = {pair.paired.p_value:.2g})"
        )
    remark(f"Curves, settings and classes: {out}", quiet=quiet)
