"""Attention worked by hand: what does "goat" mean next to sheep, and next to Messi?

A lecture's example with embeddings of two numbers, how much of an animal and how much of a footballer. The embeddings
are queries, keys and values alike. Its numbers stand here as printed; ours are computed by the package's attention.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from vitrail.nn.dot_product import attention_weights

QUERY = "goat"


class Printed(NamedTuple):
    """The lecture's numbers for one sentence."""

    scaled: tuple[float, ...]
    weights: tuple[float, ...]
    output: tuple[float, float]


class Sentence(NamedTuple):
    """A sentence, the embeddings of the words that the lecture uses, and its results."""

    text: str
    embeddings: dict[str, tuple[float, float]]
    printed: Printed


SENTENCES = (
    Sentence(
        "The sheep and goat are grazing.",
        {"the": (1, 1), "sheep": (4, 0), "and": (0, 0), "goat": (2.5, 2.5), "grazing": (5, 0)},
        Printed((3.55, 7.08, 0, 8.85, 8.85), (0.00, 0.08, 0.00, 0.46, 0.46), (3.77, 1.15)),
    ),
    Sentence(
        "Messi is the goat, not Ronaldo.",
        {"Messi": (0, 5), "is": (1, 1), "goat": (2.5, 2.5), "not": (0, 0), "Ronaldo": (0, 4)},
        Printed((8.85, 3.55, 8.85, 0, 7.08), (0.43, 0, 0.43, 0, 0.14), (1.08, 3.79)),
    ),
)


class Word(NamedTuple):
    """One key of the query: its embedding, score, scaled score and attention weight."""

    text: str
    embedding: tuple[float, float]
    score: float
    scaled: float
    weight: float
    printed_scaled: float
    printed_weight: float


class Worked(NamedTuple):
    """The attention from "goat" in one sentence."""

    text: str
    words: tuple[Word, ...]
    output: tuple[float, float]
    """The weighted sum of the embeddings: the new meaning of "goat"."""
    printed_output: tuple[float, float]


def work_out(sentence: Sentence) -> Worked:
    """Compute scores, scaled scores, weights and their weighted sum."""
    names, rows = list(sentence.embeddings), torch.tensor(list(sentence.embeddings.values()))
    query = rows[names.index(QUERY)]
    scores = rows @ query
    weights = attention_weights(query.view(1, 1, 1, -1), rows[None, None])[0, 0, 0]
    scaled = scores / len(query) ** 0.5
    columns = (scores.tolist(), scaled.tolist(), weights.tolist(), sentence.printed.scaled, sentence.printed.weights)
    words = tuple(map(Word, names, sentence.embeddings.values(), *columns))
    first, second = (weights @ rows).tolist()
    return Worked(sentence.text, words, (first, second), sentence.printed.output)
