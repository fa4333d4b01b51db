"""Tokens on a page: their text with every character visible, and how much of the loss each of them costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.text.display import display_token, visible_lines
from vitrail.data.text.tokenizer import Ids, Tokenizer

Losses = NDArray[np.float64]
NUM_COSTLY = 20
LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0)  # nats: a token's colour says how many of them its loss exceeds
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what decoding makes of a part of a character


def token_texts(ids: Iterable[int], tokenizer: Tokenizer) -> list[str]:
    """What each token adds to the text; a character of several tokens is added by the last of them."""
    numbers = [int(number) for number in ids]
    texts, before = [], ""
    for stop in range(1, len(numbers) + 1):
        text = tokenizer.inner.decode(numbers[:stop], skip_special_tokens=False)
        complete = not text.endswith(INCOMPLETE) or stop == len(numbers)
        texts.append(text[len(before) :] if complete else "")
        before = text if complete else before
    return texts


class ColouredText(NamedTuple):
    """Tokens of a text, what they cost, and the level of that."""

    text: str
    loss: float
    level: int


def coloured_text(ids: Ids, losses: Losses, tokenizer: Tokenizer) -> list[ColouredText]:
    """Each token with its loss; the tokens of one character are one, with the sum of their losses."""
    coloured, open_loss = [], 0.0
    for text, loss in zip(token_texts(ids, tokenizer), losses, strict=True):
        open_loss += float(loss)
        if text:
            level = int(np.searchsorted(LEVELS, open_loss, side="right"))
            coloured.append(ColouredText(visible_lines(text), open_loss, level))
            open_loss = 0.0
    return coloured


class TokenCost(NamedTuple):
    """How often a token was predicted, its mean loss, and its share of the loss of all tokens."""

    token: str
    num: int
    mean: float
    share: float


def costly_tokens(ids: Sequence[int] | Ids, losses: Sequence[float] | Losses, tokenizer: Tokenizer) -> list[TokenCost]:
    """The tokens with the largest shares of the loss."""
    total, num = np.bincount(ids, weights=losses), np.bincount(ids)
    order = np.argsort(-total, kind="stable")[:NUM_COSTLY]
    return [
        TokenCost(display_token(tokenizer, int(number)), int(num[number]), total[number] / num[number], share)
        for number in order
        if num[number] and (share := float(total[number] / max(total.sum(), 1e-12))) > 0
    ]
