"""`vitrail compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, print_table, remark
from vitrail.errors import printable
from vitrail.percent import percent, percent_range
from vitrail.progress import duration


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="The directories of two or more runs.")],
    out: Annotated[Path, typer.Option(help="The HTML page to write.")] = Path("compare.html"),
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Compare runs, and test their difference."""
    from vitrail.verbs.compare import compare

    result = compare(runs, page=out)
    if as_json:
        pairs = [
            {
                "name": pair.name,
                "paired": None if pair.paired is None else pair.paired._asdict(),
                "n": pair.n,
                "real": pair.significant,
            }
            for pair in result.pairs
        ]
        entries = [each._asdict() for each in result.entries]
        print_json({"page": out, "runs": entries, "pairs": pairs, "differences": result.differences})
        return
    rows = [
        [
            printable(each.name),
            percent(each.score, 2),
            percent_range(each.interval, 2),
            f"{each.n:,} {each.split}",
            duration(each.seconds),
        ]
        for each in result.entries
    ]
    print_table(["run", "score", "95 % interval", "images", "time"], rows)
    for pair in result.pairs:
        if pair.paired is None:
            print(f"{printable(pair.name)}: evaluated on other images, so the scores cannot be compared.")
            continue
        low, high = (f"{100 * end:+.2f}" for end in pair.paired.interval)
        verdict = "significant" if pair.significant else "not significant"
        print(
            f"{printable(pair.name)}: {100 * pair.paired.difference:+.2f} points ({low} to {high}) against "
            f"{printable(result.entries[0].name)} on {pair.n:,} images, {verdict} (p = {pair.paired.p_value:.2g})"
        )
    remark(f"Curves, settings and classes: {out}", quiet=quiet)
