"""Beam search with length normalisation (Wu et al., arXiv 1609.08144, section 7).

The log probability of a hypothesis is divided by ((5 + length) / 6) ^ penalty, or short ones would always win.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from vitrail.contract import TokenModel
from vitrail.model.seq2seq import Seq2Seq

BEAM = 5
LENGTH_PENALTY = 1.0
EXTRA_TOKENS = 20  # a translation may be twice as long as its source, and this much longer


class Hypothesis(NamedTuple):
    """A finished translation without [BOS] and [EOS], and its log probability divided by its normalised length."""

    ids: tuple[int, ...]
    score: float


class Beginning(NamedTuple):
    """An unfinished translation: the row of the batch that it extends by a token, and its log probability."""

    row: int
    token: int
    score: float


@torch.inference_mode()
def beam_search(
    model: TokenModel,
    source: Int64[Tensor, "B M"],
    *,
    start: int,
    end: int,
    pad: int,
    beam: int = BEAM,
    length_penalty: float = LENGTH_PENALTY,
) -> list[Hypothesis]:
    """Translate a batch of sources; the best hypothesis of each.

    Each source keeps its `beam` most likely beginnings. It is done once it has finished as many hypotheses, and none of
    its beginnings is better than the best of those. A beam of 1 is greedy search.
    """
    assert isinstance(model, Seq2Seq)
    batch, device = len(source), source.device
    lengths = (source != pad).sum(dim=1).tolist()
    limits = [min(model.spec.context - 1, 2 * length + EXTRA_TOKENS) for length in lengths]  # the same in any batch
    repeated = torch.arange(batch, device=device).repeat_interleave(beam)
    caches = tuple(_take(cache, repeated) for cache in model.start(source))
    ids = torch.full((batch * beam, 1), start, device=device)
    scores = torch.full((batch, beam), -torch.inf, device=device)
    scores[:, 0] = 0.0  # at first all beginnings of a source are the same
    finished: list[list[Hypothesis]] = [[] for _ in range(batch)]
    active = list(range(batch))  # the sources that the rows belong to
    for length in range(1, max(limits) + 1):
        logits, caches = model.step(ids[:, -1:], caches)
        logits = logits.float()
        logits[:, [start, pad]] = -torch.inf
        vocab = logits.shape[1]
        totals = scores[:, :, None] + logits.log_softmax(dim=1).view(len(active), beam, vocab)
        # Twice as many as needed: at most half of them end here.
        best, flat = (each.tolist() for each in totals.flatten(1).topk(min(2 * beam, beam * vocab), dim=1))
        normal_length = ((5 + length) / 6) ** length_penalty
        kept: dict[int, list[Beginning]] = {}
        for number, index in enumerate(active):
            begun: list[Beginning] = []
            for score, place in zip(best[number], flat[number], strict=True):
                row, token = number * beam + place // vocab, place % vocab
                if token != end and length < limits[index]:
                    begun.append(Beginning(row, token, score))
                elif len(begun) < beam:
                    last = () if token == end else (token,)
                    finished[index].append(Hypothesis((*ids[row, 1:].tolist(), *last), score / normal_length))
            if begun and not _is_done(finished[index], begun[0].score / normal_length, beam):
                kept[index] = begun[:beam] + [begun[0]._replace(score=-torch.inf)] * (beam - len(begun))
        if not kept:
            break
        rows = torch.tensor([each.row for begun in kept.values() for each in begun], device=device)
        tokens = torch.tensor([each.token for begun in kept.values() for each in begun], device=device)
        ids = torch.cat([ids[rows], tokens[:, None]], dim=1)
        caches = tuple(_take(cache, rows) for cache in caches)
        scores = torch.tensor([[each.score for each in begun] for begun in kept.values()], device=device)
        active = list(kept)
    return [max(each, key=lambda hypothesis: hypothesis.score) for each in finished]


def _is_done(finished: list[Hypothesis], best: float, beam: int) -> bool:
    """Whether there are enough hypotheses, and the best of them beats the best beginning, which has this score."""
    return len(finished) >= beam and max(each.score for each in finished) >= best


def _take(cache: Any, rows: Tensor) -> Any:
    """The cache of these rows: nested named tuples of tensors, or None."""
    if cache is None:
        return None
    if isinstance(cache, Tensor):
        return cache[rows]
    return type(cache)(*(_take(each, rows) for each in cache))
