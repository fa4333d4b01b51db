"""A part of a data set held out of training: every class in its share, and no picture on both sides.

Pictures that are the same, or nearly, form a group, and a group is never divided: its copies in training would make the
score on the part held out too good. Classes are filled rarest first, as in Sechidis et al. 2011, "On the Stratification
of Multi-Label Data", section 3: a group that has rare labels is spoken for before the common ones need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.check import Progress, scan_source
from vitrail.data.duplicates import Thumbnail, near_pairs
from vitrail.data.rng import make_rng
from vitrail.data.scan import Scan
from vitrail.data.table import Table
from vitrail.errors import DataError


class HeldOut(NamedTuple):
    """The two sides of a table, by its rows."""

    kept: NDArray[np.int64]
    """What stays for training, sorted."""
    held: NDArray[np.int64]
    """What is held out for validation, sorted."""
    num_groups: int
    """Groups of two or more pictures, the same or nearly, that stayed together."""


def hold_out(source: Table, *, share: float, seed: int, seen: Sequence[Scan] | None) -> HeldOut:
    """Hold out a share of each class, as near as whole groups drawn at random come to it; for one seed always the same.

    `seen` is a look at each of its pictures (`look_at`); without one every picture is taken for a group of its own.
    A class of two groups or more has a picture at least on either side; one of a single group stays in training. Only
    where groups span classes, with contradicting or several labels, may a class be left without a picture held out:
    if training would else lose all of another. Pictures that cannot be read count for nothing and stay in training.
    """
    if not 0.0 < share < 1.0:
        raise DataError(
            "the share that is held out lies between 0 and 1.", got=f"{share}.", hint="0.1, a tenth of each class."
        )
    groups, readable = groups_of(len(source), seen)
    members = members_of(source, groups, readable)
    random = make_rng("split", seed=seed, epoch=0)
    chosen = _chosen(members, _quotas(members, share, random), random)
    held = np.isin(groups, list(chosen))
    return HeldOut(np.flatnonzero(~held), np.flatnonzero(held), int((np.bincount(groups) > 1).sum()))


def grouped(source: Table, *, workers: int | None = None, progress: Progress | None = None) -> NDArray[np.int64]:
    """The group of each picture, numbered as they first come up: those of one group are the same picture, or nearly.

    A picture that looks like no other, or cannot be read, is a group of its own.
    """
    return groups_of(len(source), scan_source(source, workers=workers, progress=progress))[0]


def groups_of(num: int, scans: Sequence[Scan] | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The group of each of so many pictures, and whether it can be read."""
    if scans is None:
        return np.arange(num), np.ones(num, dtype=bool)
    readable = np.zeros(num, dtype=bool)
    firsts: dict[bytes, int] = {}
    looks: dict[int, Thumbnail] = {}
    pairs: list[tuple[int, int]] = []
    for seen in scans:
        if seen.problem is not None:
            continue
        readable[seen.index] = True
        first = firsts.setdefault(seen.key, seen.index)
        if first != seen.index:
            pairs.append((first, seen.index))
        elif seen.look is not None:
            looks[seen.index] = seen.look
    rows = list(looks)
    pairs += [(rows[pair.first], rows[pair.second]) for pair in near_pairs(list(looks.values()))]
    return _connected(num, pairs), readable


def _connected(num: int, pairs: list[tuple[int, int]]) -> NDArray[np.int64]:
    """The group of each of so many pictures, where those of a pair are in the same one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(pairs), dtype=bool), (ends[0], ends[1])), shape=(num, num))
    _, found = connected_components(graph, directed=False)
    _, places, numbers = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(places))[numbers]


class Members(NamedTuple):
    """How many pictures of which label each group has, group after group."""

    starts: list[int]
    """Where each group's labels start, and the last ones end."""
    labels: list[int]
    counts: list[int]
    num_labels: int

    def of(self, group: int) -> list[tuple[int, int]]:
        """The labels of one group, and how many pictures have each."""
        cells = slice(self.starts[group], self.starts[group + 1])
        return list(zip(self.labels[cells], self.counts[cells], strict=True))

    def sizes(self) -> NDArray[np.int64]:
        """The pictures of each label."""
        return np.bincount(self.labels, weights=self.counts, minlength=self.num_labels).astype(np.int64)


def members_of(source: Table, groups: NDArray[np.int64], readable: NDArray[np.bool_]) -> Members:
    """Of the readable pictures alone; those without a label are a class of their own, after the others."""
    num_groups, num_labels = int(groups.max(initial=-1)) + 1, len(source.classes) + 1
    numbers = np.ones(len(source), dtype=np.int64) if source.starts is None else np.diff(source.starts)
    without = np.flatnonzero(numbers == 0)
    rows = np.concatenate([np.repeat(np.arange(len(source)), numbers), without])
    labels = np.concatenate([source.labels[: numbers.sum()], np.full(len(without), num_labels - 1)])
    cells = (groups[rows] * num_labels + labels)[readable[rows]]
    cells, counts = np.unique(cells, return_counts=True)
    starts = np.searchsorted(cells, np.arange(num_groups + 1) * num_labels)
    return Members(starts.tolist(), (cells % num_labels).tolist(), counts.tolist(), num_labels)


def _quotas(members: Members, share: float, random: np.random.Generator) -> list[int]:
    """The pictures of each label to hold out: rounded down, then up where most was lost, until the whole is right."""
    sizes = members.sizes()
    wanted = share * sizes
    divisible = np.bincount(members.labels, minlength=members.num_labels) >= 2
    quotas = np.where(divisible, np.maximum(wanted.astype(np.int64), 1), 0)
    lost = np.where(divisible & (quotas < sizes - 1), wanted - quotas, 0.0)
    missing = max(0, round(wanted.sum()) - int(quotas.sum()))
    most = np.lexsort((random.permutation(len(lost)), -lost))
    quotas[most[: min(missing, int((lost > 0).sum()))]] += 1
    return quotas.tolist()


class _Side:
    """The groups that are held out so far, and how many pictures of each label that is."""

    def __init__(self, members: Members, quotas: list[int]) -> None:
        self.members, self.quotas = members, quotas
        self.sizes: list[int] = members.sizes().tolist()
        self.held = [0] * members.num_labels
        self.groups: set[int] = set()

    def add(self, group: int) -> None:
        self.groups.add(group)
        for label, count in self.members.of(group):
            self.held[label] += count

    def lacks(self, label: int) -> bool:
        return self.held[label] < self.quotas[label]

    def fits(self, group: int) -> bool:
        """Whether no label would get more than its quota."""
        return all(self.held[label] + count <= self.quotas[label] for label, count in self.members.of(group))

    def spares(self, group: int) -> bool:
        """Whether training would keep something of every label."""
        return all(self.held[label] + count < self.sizes[label] for label, count in self.members.of(group))

    def gain(self, group: int) -> float:
        """How much nearer to the quotas it would come, in parts of each label: rare ones weigh as much as common."""
        gaps = ((label, self.quotas[label] - self.held[label], count) for label, count in self.members.of(group))
        return sum((abs(gap) - abs(gap - count)) / self.sizes[label] for label, gap, count in gaps)


def _chosen(members: Members, quotas: list[int], random: np.random.Generator) -> set[int]:
    """The groups that are held out: label by label, the rarest first, what fits of the groups in random order."""
    rank = np.argsort(np.argsort(members.sizes(), kind="stable"))
    readable = np.flatnonzero(np.diff(members.starts))
    first_cells = np.array(members.starts)[readable]
    rarest = np.minimum.reduceat(rank[members.labels], first_cells) if len(readable) else readable
    side = _Side(members, quotas)
    others = []
    for group in readable[np.lexsort((random.permutation(len(readable)), rarest))].tolist():
        if side.fits(group):
            side.add(group)
        else:
            others.append(group)
    _top_up(side, others)
    return side.groups


def _top_up(side: _Side, others: list[int]) -> None:
    """Groups that did not fit, for labels that lack some: those that come nearer to the quotas, and one in any case."""
    lacking = sorted((size, label) for label, size in enumerate(side.sizes) if side.lacks(label))
    having: dict[int, list[int]] = {label: [] for _, label in lacking}  # the rarest first here too
    for group in others:
        for label, _ in side.members.of(group):
            if label in having:
                having[label].append(group)
    for label, groups in having.items():
        for group in sorted(groups, key=side.gain, reverse=True):
            if not side.lacks(label):
                break
            wanted = side.gain(group) > 0.0 or not side.held[label]
            if wanted and group not in side.groups and side.spares(group):
                side.add(group)
