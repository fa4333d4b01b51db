"""Filling the gaps of a text with a masked language model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.text.tokenizer import MASK
from vitrail.errors import DataError
from vitrail.run.calibrate import read_calibration
from vitrail.run.text_model import TextModel


class FilledText(NamedTuple):
    """A text, and for each [MASK] in it the most likely tokens with their calibrated probabilities."""

    text: str
    masks: tuple[tuple[tuple[str, float], ...], ...]

    @property
    def filled(self) -> str:
        """The text with the most likely token in each gap."""
        first, *parts = self.text.split(MASK)
        for (token, _), *_ in self.masks:  # a sub-word begins with the space before it
            first = (first.rstrip(" ") if token.startswith(" ") else first) + token + parts.pop(0)
        return first


@torch.inference_mode()
def fill_masks(opened: TextModel, text: str, *, top: int = 5) -> FilledText:
    """Predict what is behind each [MASK] of a text."""
    tokenizer = opened.tokenizer
    ids = tokenizer.encode_marked(text)
    places = np.flatnonzero(ids == tokenizer.special(MASK))
    if not len(places):
        raise DataError(
            "there is no gap to fill.", got=f"{text!r}." if text else "an empty text.", hint="'The [MASK] barks'."
        )
    probabilities = mask_probabilities(opened, opened.model(opened.batch_of_one(ids))[0][places])
    best = probabilities.topk(min(top, tokenizer.num_tokens - len(tokenizer.special_ids)), dim=1)
    return FilledText(
        text,
        tuple(
            tuple((tokenizer.label(token), probability) for token, probability in zip(*row, strict=True))
            for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ),
    )


def mask_probabilities(opened: TextModel, logits: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
    """The calibrated probability of each token behind a [MASK], from its logits; special tokens are never there."""
    special = torch.tensor(sorted(opened.tokenizer.special_ids))
    return read_calibration(opened.path).probabilities(logits.float().index_fill(1, special, -torch.inf))
