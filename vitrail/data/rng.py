"""All randomness of the data: each draw is a pure function of (seed, epoch, index).

Order and pixels therefore do not depend on workers, ranks or interruptions, and resuming needs only a step number.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

PURPOSES = {"order": 0, "pixels": 1, "mix": 2, "split": 3, "batches": 4, "masks": 5}
STRETCH_BATCHES = 64  # sorted by length at once
KEY_RANGE = 2**64


def make_rng(
    purpose: Literal["order", "pixels", "mix", "split", "batches", "masks"],
    *,
    seed: int,
    epoch: int,
    index: int = 0,
    repeat: int = 0,
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


def group_lengths(
    order: NDArray[np.int64], lengths: NDArray[np.int64], batch_size: int, *, seed: int, epoch: int, shuffle: bool
) -> NDArray[np.int64]:
    """The same order with samples of similar length in a batch, so that little of it is padding.

    A shuffled order stays random: samples are sorted within long stretches of it, and the batches are shuffled. Without
    shuffling, the longest come first. An incomplete batch stays the last.
    """
    if not shuffle:
        return order[np.argsort(-lengths[order], kind="stable")]
    num_whole = len(order) // batch_size
    whole, rest = order[: num_whole * batch_size], order[num_whole * batch_size :]  # training leaves out random ones
    stretch = STRETCH_BATCHES * batch_size
    parts = [whole[start : start + stretch] for start in range(0, len(whole), stretch)]
    ordered = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in parts] or [whole])
    batches = make_rng("batches", seed=seed, epoch=epoch).permutation(num_whole)
    return np.concatenate([ordered.reshape(num_whole, batch_size)[batches].ravel(), rest])


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
