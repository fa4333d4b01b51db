"""All randomness of the data: each draw a pure function of (seed, epoch, index), whoever makes it and when.

So the order and the pixels do not depend on workers, ranks or interruptions, and resuming needs only a step number.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

PURPOSES = {"order": 0, "pixels": 1, "mix": 2, "split": 3}
WORD = 2**64


def make_rng(
    purpose: Literal["order", "pixels", "mix", "split"], *, seed: int, epoch: int, index: int = 0, repeat: int = 0
) -> np.random.Generator:
    """A generator of its own for each purpose, epoch and index: Philox is a function of its key and counter."""
    counter = np.array([0, PURPOSES[purpose], repeat, index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array([seed % WORD, epoch], dtype=np.uint64), counter=counter))


def epoch_order(
    num: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    repeats: int = 1,
    balance: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which pictures an epoch shows, in order, and how often each was shown before in it.

    `balance` holds a class for each picture: then all classes are shown equally often. With `repeats` a picture comes
    several times in a row, each time augmented anew (arXiv 1901.09335), and an epoch keeps its length.
    """
    if not shuffle:
        return np.arange(num), np.zeros(num, dtype=np.int64)
    random = make_rng("order", seed=seed, epoch=epoch)
    shown = -(-num // repeats)
    order = random.permutation(num)[:shown] if balance is None else _balanced(balance, shown, random)
    order = np.repeat(order, repeats)[:num]
    return order, times_before(order)


def _balanced(labels: NDArray[np.int32], num: int, random: np.random.Generator) -> NDArray[np.int64]:
    """So many pictures, the same number of each class: each class goes round in ever new orders."""
    present = np.unique(labels)
    if not len(present):
        raise DataError("balanced sampling needs labels.", got="none.", hint="sampling as it is.")
    counts = np.full(len(present), num // len(present))
    counts[random.permutation(len(present))[: num % len(present)]] += 1
    drawn = []
    ordered = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[ordered], present, side="right")
    for members, count in zip(np.split(ordered, ends[:-1]), counts, strict=True):
        rounds = [random.permutation(members) for _ in range(-(-int(count) // len(members)))]
        drawn.append(np.concatenate([*rounds, members[:0]])[:count])
    return random.permutation(np.concatenate(drawn))


def times_before(order: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """How often each entry has occurred before its place."""
    by_value = np.argsort(order, kind="stable")
    ordered = order[by_value]
    firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.concatenate([firsts, [len(order)]]))
    times = np.empty(len(order), dtype=np.int64)
    times[by_value] = np.arange(len(order)) - np.repeat(firsts, lengths)
    return times
