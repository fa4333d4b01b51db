"""Guessing hidden words by counting: the baselines of a masked language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

EDGE = -1  # stands before the first and after the last token of a line
Context = tuple[int | None, int | None]


class NeighbourCounts:
    """How often each token stood between its two neighbours, after the left one, before the right one, and at all."""

    def __init__(self, lines: Iterable[Sequence[int]]) -> None:
        counts: dict[Context, Counter[int]] = {}
        for line in lines:
            padded = [EDGE, *map(int, line), EDGE]
            for left, token, right in zip(padded, padded[1:-1], padded[2:], strict=False):
                for context in ((left, right), (left, None), (None, right), (None, None)):
                    counts.setdefault(context, Counter())[token] += 1
        self.best = {context: min(found, key=lambda token: (-found[token], token)) for context, found in counts.items()}

    def unigram(self) -> int:
        """The most frequent token."""
        return self.best.get((None, None), EDGE)

    def trigram(self, left: int | None, right: int | None) -> int:
        """The token most often seen between these neighbours, else beside one of them; None for a hidden neighbour."""
        contexts: list[Context] = [(left, right)] if left is not None and right is not None else []
        contexts += [(left, None)] if left is not None else []
        contexts += [(None, right)] if right is not None else []
        seen = next((context for context in contexts if context in self.best), (None, None))
        return self.best.get(seen, EDGE)
