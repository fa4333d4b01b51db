"""Beam search with length normalisation (Wu et al., arXiv 1609.08144, section 7)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

BEAM = 5
LENGTH_PENALTY = 1.0
EXTRA_TOKENS = 20  # a translation may be twice as long as its source, and this much longer


class Hypothesis(NamedTuple):
    """A finished translation without [BOS] and [EOS], and its log probability divided by its normalised length."""

    ids: tuple[int, ...]
    score: float


@torch.inference_mode()
def beam_search(
    model: Any,
    source: Int64[Tensor, "B M"],
    *,
    start: int,
    end: int,
    pad: int,
    beam: int = BEAM,
    length_penalty: float = LENGTH_PENALTY,
) -> list[Hypothesis]:
    """Translate a batch of sources; the best hypothesis of each.

    Each source keeps its `beam` most likely beginnings. It is done as soon as none of them can become better than its
    best finished one. A beam of 1 is greedy search.
    """
    batch = len(source)
    limit = min(model.spec.context - 1, 2 * source.shape[1] + EXTRA_TOKENS)
    caches = tuple(_take(cache, torch.arange(batch).repeat_interleave(beam)) for cache in model.start(source))
    ids = torch.full((batch * beam, 1), start)
    scores = torch.full((batch, beam), -torch.inf)
    scores[:, 0] = 0.0  # at first all beginnings of a source are the same
    finished: list[list[Hypothesis]] = [[] for _ in range(batch)]
    active = list(range(batch))  # the sources that the rows belong to
    for length in range(1, limit + 1):
        logits, caches = model.step(ids[:, -1:], caches)
        logits = logits.float()
        logits[:, [start, pad]] = -torch.inf
        vocab = logits.shape[1]
        totals = scores[:, :, None] + logits.log_softmax(dim=1).view(len(active), beam, vocab)
        # Twice as many as needed: at most half of them end here.
        best, flat = totals.flatten(1).topk(min(2 * beam, beam * vocab), dim=1)
        rows: list[int] = []
        tokens: list[int] = []
        kept_scores: list[list[float]] = []
        kept: list[int] = []
        for number, index in enumerate(active):
            chosen: list[tuple[int, int, float]] = []
            for score, place in zip(best[number].tolist(), flat[number].tolist(), strict=True):
                row, token = number * beam + place // vocab, place % vocab
                if token == end or length == limit:
                    if len(chosen) < beam:
                        hypothesis = (*ids[row, 1:].tolist(), *(() if token == end else (token,)))
                        normalised = score / _normal_length(length, length_penalty)
                        finished[index].append(Hypothesis(hypothesis, normalised))
                elif len(chosen) < beam:
                    chosen.append((row, token, score))
            if (
                length == limit
                or not chosen
                or _is_done(finished[index], chosen[0][2], length, limit, length_penalty, beam)
            ):
                continue
            chosen += [chosen[-1]] * (beam - len(chosen))
            kept.append(index)
            rows += [row for row, _, _ in chosen]
            tokens += [token for _, token, _ in chosen]
            kept_scores.append([score for _, _, score in chosen])
        if not kept:
            break
        order = torch.tensor(rows)
        ids = torch.cat([ids[order], torch.tensor(tokens)[:, None]], dim=1)
        caches = tuple(_take(cache, order) for cache in caches)
        scores, active = torch.tensor(kept_scores), kept
    return [max(each, key=lambda hypothesis: hypothesis.score) for each in finished]


def _is_done(
    finished: list[Hypothesis], best: float, length: int, limit: int, length_penalty: float, beam: int
) -> bool:
    """Whether no unfinished beginning, the best of which has this score, can beat the finished ones."""
    if len(finished) < beam:
        return False
    longest = _normal_length(limit if length_penalty > 0 else length, length_penalty)
    return max(each.score for each in finished) >= best / longest


def _normal_length(length: int, penalty: float) -> float:
    """((5 + length) / 6) ^ penalty: longer hypotheses have lower probabilities."""
    return ((5 + length) / 6) ** penalty


def _take(cache: Any, rows: Tensor) -> Any:
    """The cache of these rows: nested named tuples of tensors, or None."""
    if cache is None:
        return None
    if isinstance(cache, Tensor):
        return cache[rows]
    return type(cache)(*(_take(each, rows) for each in cache))
