"""All randomness of the data: each draw is a pure function of (seed, epoch, index).

Order and pixels therefore do not depend on workers, ranks or interruptions, and resuming needs only a step number.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

PURPOSES = {"order": 0, "pixels": 1, "mix": 2, "split": 3}
KEY_RANGE = 2**64


def make_rng(
    purpose: Literal["order", "pixels", "mix", "split"], *, seed: int, epoch: int, index: int = 0, repeat: int = 0
) -> np.random.Generator:
    """An independent generator for each purpose, epoch and index: Philox is a function of its key and counter."""
    counter = np.array([0, PURPOSES[purpose], repeat, index], dtype=np.uint64)
    key = np.array([seed % KEY_RANGE, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def epoch_order(
    num: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    repeats: int = 1,
    balance: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order of the images in an epoch, and for each how often it occurred before in this epoch.

    `balance` holds the class of each image; then all classes are shown equally often. `repeats` shows each image that
    many times in a row, with a new augmentation each time (arXiv 1901.09335); the epoch keeps its length.
    """
    if not shuffle:
        return np.arange(num), np.zeros(num, dtype=np.int64)
    rng = make_rng("order", seed=seed, epoch=epoch)
    num_distinct = -(-num // repeats)
    order = rng.permutation(num)[:num_distinct] if balance is None else _balanced_order(balance, num_distinct, rng)
    order = np.repeat(order, repeats)[:num]
    return order, times_before(order)


def _balanced_order(labels: NDArray[np.int32], num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`num` images, equally many of each class, which is shuffled again each time all of it was used."""
    present = np.unique(labels)
    if not len(present):
        raise DataError("balanced sampling needs labels.", got="none.", hint="leaving out balanced.")
    counts = np.full(len(present), num // len(present))
    counts[rng.permutation(len(present))[: num % len(present)]] += 1
    sampled = []
    ordered = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[ordered], present, side="right")
    for members, count in zip(np.split(ordered, ends[:-1]), counts, strict=True):
        rounds = [rng.permutation(members) for _ in range(-(-int(count) // len(members)))]
        sampled.append(np.concatenate([*rounds, members[:0]])[:count])
    return rng.permutation(np.concatenate(sampled))


def times_before(order: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """For each entry, how often it occurred before."""
    by_value = np.argsort(order, kind="stable")
    ordered = order[by_value]
    firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.concatenate([firsts, [len(order)]]))
    times = np.empty(len(order), dtype=np.int64)
    times[by_value] = np.arange(len(order)) - np.repeat(firsts, lengths)
    return times
