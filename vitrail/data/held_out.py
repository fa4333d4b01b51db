"""Holds out a validation set: stratified by class, with no image on both sides.

Duplicates and near-duplicates form a group, and a group is never divided: copies in training would make the validation
score too good. Classes are filled rarest first, as in Sechidis et al. 2011, "On the Stratification of Multi-Label
Data", section 3: groups with rare labels are assigned before the common labels use them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.check import Progress, scan_source
from vitrail.data.duplicates import Thumbnail, find_near_duplicates
from vitrail.data.rng import make_rng
from vitrail.data.scan import Scan
from vitrail.data.table import Table
from vitrail.errors import DataError


class HeldOut(NamedTuple):
    """The rows of a table, divided into training and validation."""

    train: NDArray[np.int64]
    """Sorted."""
    val: NDArray[np.int64]
    """Sorted."""
    num_groups: int
    """Groups of two or more duplicates or near-duplicates, which stayed together."""


def hold_out(source: Table, *, fraction: float, seed: int, scans: Sequence[Scan] | None) -> HeldOut:
    """Hold out a fraction of each class, as closely as random whole groups allow; deterministic for a seed.

    `scans` holds the scan of each image (`scan_source`); without them, every image is a group of its own. A class with
    two groups or more has at least one image on either side; a class with a single group stays in training. Only where
    groups span classes, because labels contradict or the data is multi-label, may a class have no validation image: if
    otherwise another class would lose all of its training images. Unreadable images stay in training, uncounted.
    """
    if not 0.0 < fraction < 1.0:
        raise DataError(
            "the held-out fraction must be between 0 and 1.", got=f"{fraction}.", hint="0.1, a tenth of each class."
        )
    groups, readable = group_scans(len(source), scans)
    group_labels = count_labels(source, groups, readable)
    rng = make_rng("split", seed=seed, epoch=0)
    chosen = _choose_groups(group_labels, _quotas(group_labels, fraction, rng), rng)
    in_val = np.isin(groups, list(chosen))
    return HeldOut(np.flatnonzero(~in_val), np.flatnonzero(in_val), int((np.bincount(groups) > 1).sum()))


def group_duplicates(
    source: Table, *, workers: int | None = None, progress: Progress | None = None
) -> NDArray[np.int64]:
    """The group of each image, numbered by first occurrence: a group holds duplicates and near-duplicates.

    An image without duplicates, or one that cannot be read, is a group of its own.
    """
    return group_scans(len(source), scan_source(source, workers=workers, progress=progress))[0]


def group_scans(num: int, scans: Sequence[Scan] | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The group of each of `num` images, and whether it can be read."""
    if scans is None:
        return np.arange(num), np.ones(num, dtype=bool)
    readable = np.zeros(num, dtype=bool)
    firsts: dict[bytes, int] = {}
    thumbnails: dict[int, Thumbnail] = {}
    pairs: list[tuple[int, int]] = []
    for scan in scans:
        if scan.problem is not None:
            continue
        readable[scan.index] = True
        first = firsts.setdefault(scan.key, scan.index)
        if first != scan.index:
            pairs.append((first, scan.index))
        elif scan.thumbnail is not None:
            thumbnails[scan.index] = scan.thumbnail
    rows = list(thumbnails)
    pairs += [(rows[pair.first], rows[pair.second]) for pair in find_near_duplicates(list(thumbnails.values()))]
    return _connected_components(num, pairs), readable


def _connected_components(num: int, pairs: list[tuple[int, int]]) -> NDArray[np.int64]:
    """The group of each of `num` images, where both images of a pair are in the same group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(pairs), dtype=bool), (ends[0], ends[1])), shape=(num, num))
    _, found = connected_components(graph, directed=False)
    _, places, numbers = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(places))[numbers]


class GroupLabels(NamedTuple):
    """The labels of each group and how many images have each, concatenated over all groups."""

    starts: list[int]
    """Where each group's labels start, and where the last ones end."""
    labels: list[int]
    counts: list[int]
    num_labels: int

    def of(self, group: int) -> list[tuple[int, int]]:
        """The labels of one group, and how many of its images have each."""
        cells = slice(self.starts[group], self.starts[group + 1])
        return list(zip(self.labels[cells], self.counts[cells], strict=True))

    def sizes(self) -> NDArray[np.int64]:
        """The number of images of each label."""
        return np.bincount(self.labels, weights=self.counts, minlength=self.num_labels).astype(np.int64)


def count_labels(source: Table, groups: NDArray[np.int64], readable: NDArray[np.bool_]) -> GroupLabels:
    """The labels of the readable images by group; images without a label count as one more class, the last."""
    num_groups, num_labels = int(groups.max(initial=-1)) + 1, len(source.classes) + 1
    numbers = np.ones(len(source), dtype=np.int64) if source.starts is None else np.diff(source.starts)
    unlabelled = np.flatnonzero(numbers == 0)
    rows = np.concatenate([np.repeat(np.arange(len(source)), numbers), unlabelled])
    labels = np.concatenate([source.labels[: numbers.sum()], np.full(len(unlabelled), num_labels - 1)])
    cells = (groups[rows] * num_labels + labels)[readable[rows]]
    cells, counts = np.unique(cells, return_counts=True)
    starts = np.searchsorted(cells, np.arange(num_groups + 1) * num_labels)
    return GroupLabels(starts.tolist(), (cells % num_labels).tolist(), counts.tolist(), num_labels)


def _quotas(group_labels: GroupLabels, fraction: float, rng: np.random.Generator) -> list[int]:
    """The images of each label to hold out: rounded down, then up by largest remainder until the total is right."""
    sizes = group_labels.sizes()
    exact = fraction * sizes
    divisible = np.bincount(group_labels.labels, minlength=group_labels.num_labels) >= 2
    quotas = np.where(divisible, np.maximum(exact.astype(np.int64), 1), 0)
    remainders = np.where(divisible & (quotas < sizes - 1), exact - quotas, 0.0)
    missing = max(0, round(exact.sum()) - int(quotas.sum()))
    largest = np.lexsort((rng.permutation(len(remainders)), -remainders))
    quotas[largest[: min(missing, int((remainders > 0).sum()))]] += 1
    return quotas.tolist()


class _Selection:
    """The groups selected for validation so far, and their number of images per label."""

    def __init__(self, group_labels: GroupLabels, quotas: list[int]) -> None:
        self.group_labels, self.quotas = group_labels, quotas
        self.sizes: list[int] = group_labels.sizes().tolist()
        self.counts = [0] * group_labels.num_labels
        self.groups: set[int] = set()

    def add(self, group: int) -> None:
        self.groups.add(group)
        for label, count in self.group_labels.of(group):
            self.counts[label] += count

    def lacks(self, label: int) -> bool:
        return self.counts[label] < self.quotas[label]

    def fits(self, group: int) -> bool:
        """Whether no label would exceed its quota."""
        return all(self.counts[label] + count <= self.quotas[label] for label, count in self.group_labels.of(group))

    def spares(self, group: int) -> bool:
        """Whether training would keep images of every label."""
        return all(self.counts[label] + count < self.sizes[label] for label, count in self.group_labels.of(group))

    def gain(self, group: int) -> float:
        """How much closer to the quotas it would bring us, relative to each label's size, so that rare labels count."""
        gaps = ((label, self.quotas[label] - self.counts[label], count) for label, count in self.group_labels.of(group))
        return sum((abs(gap) - abs(gap - count)) / self.sizes[label] for label, gap, count in gaps)


def _choose_groups(group_labels: GroupLabels, quotas: list[int], rng: np.random.Generator) -> set[int]:
    """The groups to hold out: label by label, the rarest first, every group that fits, in random order."""
    rank = np.argsort(np.argsort(group_labels.sizes(), kind="stable"))
    readable = np.flatnonzero(np.diff(group_labels.starts))
    first_cells = np.array(group_labels.starts)[readable]
    rarest = np.minimum.reduceat(rank[group_labels.labels], first_cells) if len(readable) else readable
    selection = _Selection(group_labels, quotas)
    others = []
    for group in readable[np.lexsort((rng.permutation(len(readable)), rarest))].tolist():
        if selection.fits(group):
            selection.add(group)
        else:
            others.append(group)
    _top_up(selection, others)
    return selection.groups


def _top_up(selection: _Selection, others: list[int]) -> None:
    """Add groups that did not fit, for labels below their quota: those with a gain, and at least one per label."""
    lacking = sorted((size, label) for label, size in enumerate(selection.sizes) if selection.lacks(label))
    candidates: dict[int, list[int]] = {label: [] for _, label in lacking}  # the rarest first here too
    for group in others:
        for label, _ in selection.group_labels.of(group):
            if label in candidates:
                candidates[label].append(group)
    for label, groups in candidates.items():
        for group in sorted(groups, key=selection.gain, reverse=True):
            if not selection.lacks(label):
                break
            wanted = selection.gain(group) > 0.0 or not selection.counts[label]
            if wanted and group not in selection.groups and selection.spares(group):
                selection.add(group)
