"""`vitrail generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, remark


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run of a language model or a translator.")],
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The text to continue or to translate; - for standard input.")
    ] = "",
    length: Annotated[int, typer.Option(min=1, max=100_000, help="Tokens to generate, at most.")] = 300,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="0 for the most likely token every time.")
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from this many most likely tokens only.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same text.")] = 0,
    beam: Annotated[int, typer.Option(min=1, max=100, help="Beginnings that a translator keeps; 1 is greedy.")] = 5,
    to: Annotated[str | None, typer.Option(help="The language to translate to, if the run has several.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Continue a text with a language model, or translate it."""
    from vitrail.data.text.argument import read_argument
    from vitrail.verbs.generate import generate

    text = read_argument(prompt).text.removesuffix("\n")

    def show(piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()

    result = generate(
        run,
        text,
        length=length,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        beam=beam,
        to=to,
        show=None if as_json else show,
    )
    if as_json:
        print_json(result._asdict())
        return
    print()
    remark(f"{result.num_tokens:,} tokens in {result.seconds:.2f} s", quiet=quiet)
