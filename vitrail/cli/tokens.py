"""`vitrail tokens`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, remark
from vitrail.errors import printable

if TYPE_CHECKING:
    from vitrail.inspection.clip_patches import ClipPatches
    from vitrail.inspection.patches import Patches
    from vitrail.verbs.tokens import TextTokens

COLOURS = ("#c9b8f5", "#b4efbd", "#fadda8", "#f8b3b5", "#a9e0f7")
MAX_SHOWN = 2000  # tokens in the terminal
MAX_COLUMNS = 24  # of a grid that is printed
MAX_LEVELS = 400  # tokens of a waveform that are printed
BLOCKS = "▁▂▃▄▅▆▇█"


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="A text in quotes, a .txt file, - for a pipe, an image, a sound or a video."
        ),
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
        str | None,
        typer.Option(
            help="For an image or a clip: a model name from the catalogue. Default: vit_base_patch16_224, "
            "vit_nano_patch80_sound8000 or vit_nano_patch2x8_gap_video8x64."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write an HTML page here.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Show how a text, an image, a sound or a video is cut into tokens."""
    from vitrail.verbs.tokens import ImageTokens, TextTokens, tokens

    found = tokens(source, tokenizer=tokenizer, run=run, model=model, out=out)
    if isinstance(found, TextTokens):
        if found.by_default:
            remark(f"Cut by {found.tokenizer}; choose with --tokenizer or --run.", quiet=quiet)
        if as_json:
            print_json(_text_json(found))
            return
        _print_text(found)
    elif as_json:
        fields = _image_json(found.patches) if isinstance(found, ImageTokens) else _clip_json(found.patches)
        print_json({**fields, "page": found.page})
        return
    elif isinstance(found, ImageTokens):
        _print_patches(found.patches)
    else:
        _print_clip(found.patches)
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


def _clip_json(patches: ClipPatches) -> dict[str, Any]:
    return {
        "kind": patches.modality,
        "clip": patches.clip,
        "model": patches.model,
        "input_size": patches.preprocess.size,
        "rate": patches.preprocess.rate,
        "seconds": patches.preprocess.seconds,
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
    if columns <= MAX_COLUMNS:
        width = len(str(patches.num_patches))
        for row in range(rows):
            print(" ".join(f"{row * columns + column + 1:{width}d}" for column in range(columns)))
    prefix = "".join(f" + {group}" for group in patches.prefix_groups)
    print(f"{patches.parts}{prefix} = {patches.num_tokens:,} tokens")
    if patches.noun == "patches":
        sides = f"{patches.patch[0]} x {patches.patch[1]} x {patches.channels}"
        print(f"Each patch has {sides} = {patches.num_numbers:,} numbers.")


def _print_clip(patches: ClipPatches) -> None:
    """Print the tokens of a moment with their numbers, or the loudness of each, and how many there are."""
    rows, columns = ([1, *patches.grid])[-2:]
    width = len(str(patches.num_patches))
    if patches.form == "waveform" and columns <= MAX_LEVELS:
        print(_levels(patches.sample, columns))
    elif patches.form != "waveform" and columns <= MAX_COLUMNS:
        order = range(rows) if patches.form == "video" else reversed(range(rows))  # low frequencies at the bottom
        for row in order:
            print(" ".join(f"{row * columns + column + 1:{width}d}" for column in range(columns)))
        if patches.form == "video" and patches.grid[0] > 1:
            print(f"and {patches.grid[0] - 1} more of these, one after the other in time")
    prefix = "".join(f" + {group}" for group in patches.prefix_groups)
    print(f"{patches.parts}{prefix} = {patches.num_tokens:,} tokens; each covers {patches.token_duration}")
    if patches.cut and patches.num_numbers > 1:
        sides = " x ".join(map(str, (*patches.patch, patches.preprocess.channels)))
        print(f"Each {patches.singular} has {sides} = {patches.num_numbers:,} numbers.")


def _levels(wave: Any, num: int) -> str:
    """The loudness of each token of a waveform, as a block of this height."""
    import numpy as np

    levels = np.sqrt(np.square(wave.reshape(num, -1)).mean(axis=1))
    return "".join(BLOCKS[round(each)] for each in levels / max(float(levels.max()), 1e-9) * (len(BLOCKS) - 1))


def _count(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'' if num == 1 else 's'}"
