"""How an input is cut into tokens, as an offline page: coloured tokens of a text, or the patches of an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.data.text.display import TokenSpan, visible, visible_lines
from vitrail.inspection.data_url import png_url
from vitrail.pages import render_template

if TYPE_CHECKING:
    from vitrail.inspection.patches import Patches

MAX_TOKENS = 20_000  # on a page
MAX_OPEN = 300  # tokens in a list that is shown at first


def render_text(
    tokens: Sequence[TokenSpan], *, tokenizer: str, num_characters: int, num_utf16_units: int, name: str
) -> str:
    """The page of a text."""
    return render_template(
        "vitrail.inspection",
        "tokens_page.html",
        name=name,
        tokenizer=tokenizer,
        tokens=[(token, visible_lines(token.text), visible(token.text)) for token in tokens[:MAX_TOKENS]],
        num_tokens=len(tokens),
        num_characters=num_characters,
        num_utf16_units=num_utf16_units,
        max_open=MAX_OPEN,
    )


def render_patches(patches: Patches) -> str:
    """The page of an image."""
    pixels = patches.pixels
    return render_template(
        "vitrail.inspection",
        "patches_page.html",
        patches=patches,
        name=Path(patches.image).name,
        image=png_url(pixels[..., 0] if pixels.shape[-1] == 1 else pixels),
    )
