"""Translating many sentences with a finished model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from vitrail.data.text.tokenizer import END, START, Ids, Tokenizer
from vitrail.model.seq2seq import Seq2Seq
from vitrail.run.beam import BEAM, beam_search

BATCH_SIZE = 32


def translate_all(
    model: Seq2Seq,
    tokenizer: Tokenizer,
    sources: Sequence[Ids],
    *,
    beam: int = BEAM,
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """The translations of encoded sources, in their order; those of similar length are translated together."""
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    found: dict[int, str] = {}
    device = model.embed.weight.device
    for start in range(0, len(order), BATCH_SIZE):
        rows = order[start : start + BATCH_SIZE]
        longest = max(len(sources[row]) for row in rows)
        batch = np.full((len(rows), longest), tokenizer.pad, dtype=np.int64)
        for row, index in enumerate(rows):
            batch[row, : len(sources[index])] = sources[index]
        best = beam_search(
            model,
            torch.from_numpy(batch).to(device),
            start=tokenizer.special(START),
            end=tokenizer.special(END),
            pad=tokenizer.pad,
            beam=beam,
        )
        found |= {index: tokenizer.decode(each.ids) for index, each in zip(rows, best, strict=True)}
        if progress is not None:
            progress(len(found), len(sources))
    return [found[index] for index in range(len(sources))]
