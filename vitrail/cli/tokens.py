"""`vitrail tokens`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, remark
from vitrail.errors import printable

if TYPE_CHECKING:
    from vitrail.inspection.patches import Patches
    from vitrail.verbs.tokens import TextTokens

COLOURS = ("#c9b8f5", "#b4efbd", "#fadda8", "#f8b3b5", "#a9e0f7")
MAX_SHOWN = 2000  # tokens in the terminal
MAX_COLUMNS = 24  # of a grid that is printed


def command(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A text in quotes, a .txt file, - for a pipe, or an image.")
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="For text: characters, subwords, words or cl100k. Default: cl100k if its vocabulary is on this "
            "machine, else characters."
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="A run whose tokenizer, or whose patches, to use.")] = None,
    model: Annotated[
        str | None, typer.Option(help="For an image: a model name from the catalogue. Default: vit_base_patch16_224.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write an HTML page here.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Show how a text or an image is cut into tokens."""
    from vitrail.verbs.tokens import TextTokens, tokens

    found = tokens(source, tokenizer=tokenizer, run=run, model=model, out=out)
    if isinstance(found, TextTokens):
        if found.by_default:
            remark(f"Cut by {found.tokenizer}; choose with --tokenizer or --run.", quiet=quiet)
        if as_json:
            print_json(_text_json(found))
            return
        _print_text(found)
    elif as_json:
        print_json({**_image_json(found.patches), "page": found.page})
        return
    else:
        _print_patches(found.patches)
    if found.page is not None:
        print(f"Page: {printable(str(found.page))}")


def _text_json(found: TextTokens) -> dict[str, Any]:
    return {
        "kind": "text",
        "tokenizer": found.tokenizer,
        "tokens": [token._asdict() for token in found.tokens],
        "num_tokens": len(found.tokens),
        "num_characters": found.num_characters,
        "num_utf16_units": found.num_utf16_units,
        "page": found.page,
    }


def _image_json(patches: Patches) -> dict[str, Any]:
    return {
        "kind": "image",
        "image": patches.image,
        "model": patches.model,
        "image_size": patches.pixels.shape[:2],
        "grid": patches.grid,
        "patch": patches.patch,
        "prefix": patches.prefix,
        "num_patches": patches.num_patches,
        "num_tokens": patches.num_tokens,
    }


def _print_text(found: TextTokens) -> None:
    """Print the tokens, coloured on a terminal and separated elsewhere, their ids and their number."""
    from rich.console import Console
    from rich.text import Text

    from vitrail.data.text.display import visible, visible_lines

    console = Console(highlight=False, markup=False, soft_wrap=True)
    shown = found.tokens[:MAX_SHOWN]
    if console.is_terminal and not console.no_color:
        styles = [f"black on {COLOURS[index % len(COLOURS)]}" for index in range(len(shown))]
        parts = [(visible_lines(token.text), style) for token, style in zip(shown, styles, strict=True)]
        console.print(Text.assemble(*parts))
    else:
        print("|".join(visible(token.text) for token in shown))
    print(" ".join(str(token.id) for token in shown))
    if len(shown) < len(found.tokens):
        print(f"and {len(found.tokens) - len(shown):,} more; --json lists all.")
    num_unknown = sum(token.unknown for token in found.tokens)
    units = "" if found.num_utf16_units == found.num_characters else f" ({found.num_utf16_units:,} UTF-16 units)"
    unknown = f", {num_unknown:,} unknown to the tokenizer" if num_unknown else ""
    print(f"{_count(len(found.tokens), 'token')}, {_count(found.num_characters, 'character')}{units}{unknown}")


def _print_patches(patches: Patches) -> None:
    """Print the grid of patches with their numbers, and how many tokens there are."""
    rows, columns = patches.grid
    noun = "patches" if patches.cut else "cells"
    if columns <= MAX_COLUMNS:
        width = len(str(patches.num_patches))
        for row in range(rows):
            print(" ".join(f"{row * columns + column + 1:{width}d}" for column in range(columns)))
    prefix = "".join(f" + {group}" for group in patches.prefix_groups)
    size = f"{patches.patch[0]} x {patches.patch[1]}"
    print(
        f"{rows} x {columns} = {patches.num_patches:,} {noun} of {size} pixels{prefix} = {patches.num_tokens:,} tokens"
    )
    if patches.cut:
        numbers = patches.patch[0] * patches.patch[1] * patches.channels
        print(f"Each patch has {size} x {patches.channels} = {numbers:,} numbers.")


def _count(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'' if num == 1 else 's'}"
