"""`vitrail claims`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, print_table, remark
from vitrail.errors import SpecError

if TYPE_CHECKING:
    from vitrail.benchmark.results import ClaimResult


def command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A claim to run, or all; without it, the verdicts are listed."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder of CIFAR-10, Oxford Pets and DeiT-Ti; see docs/claims.md.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Experiments that would end later do not start.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every experiment.")] = 3,
    out: Annotated[Path | None, typer.Option(help="The folder of results: to list, to continue, to write.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write all claims and their figures as a page in Markdown.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Check what lectures and papers claim about Vision Transformers.

    Every claim is an experiment at desk scale, with seeds and intervals, and its verdict is computed from the results.

    A claim that is stopped continues with the same command.
    """
    from vitrail.benchmark.results import RESULTS
    from vitrail.verbs.claims import claims, run_claims, write_claims_page

    if page is not None:
        if name is not None:
            raise SpecError("a page shows all claims.", got=f"{name} and --page.", hint="--page without a name.")
        remark(f"Page: {write_claims_page(page, out or RESULTS)}", quiet=quiet)
    if name is None:
        found = claims(out or RESULTS)
    elif data is None:
        raise SpecError("running a claim needs data.", got="no --data.", hint="--data FOLDER; see docs/claims.md.")
    else:
        found = run_claims(
            name, data=data, minutes=minutes, seeds=seeds, results=out, say=lambda text: remark(text, quiet=quiet)
        )
    if as_json:
        print_json([claim.as_json() for claim in found])
        return
    print_table(["claim", "deck", "verdict", "statistic", "seeds"], [_row(claim) for claim in found])
    if name is not None:
        for part in (part for claim in found for part in claim.parts):
            print(f"{part.verdict}: {part.statement}")


def _row(claim: ClaimResult) -> list[str]:
    if claim.statistic is None:
        return [claim.name, claim.deck, claim.verdict, "", "0"]
    interval = "" if claim.interval is None else f" ({claim.interval[0]:+.3f} to {claim.interval[1]:+.3f})"
    return [claim.name, claim.deck, claim.verdict, f"{claim.statistic:+.3f}{interval}", str(claim.seeds)]
