"""Pictures that are the same, or nearly: encoded again, resized, mirrored, or cropped by a few percent at the edges.

A picture is looked at as a thumbnail, of which the low frequencies of a cosine transform are kept, each weighted by
its frequency. The same numbers of a part of the thumbnail, or of its mirror image, come almost free, so each picture
is asked for under all of these views among the others as they are. Candidates share a random choice of signs (locality
sensitive hashing), so that time grows with the number of pictures, not with its square.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

SIDE = 40  # pixels of a thumbnail
COLOUR_SIDE = 4
FREQUENCIES = 13
ALIKE = 0.94  # of a view and a picture; pairs from Oxford Pets that differ reach 0.89, 95 % crops fall to 0.95
COLOUR_GAP = 10.0  # levels of mean difference in colour
NUM_TABLES = 24
SPARE_BITS = 4  # so that chance alone fills a place of a table with a 16th of a picture
MIN_BITS, MAX_BITS = 12, 24
CROWD = 64  # pictures of one place in a table that are compared, at most
CHUNK = 2048
WHOLE = (0.0, 1.0)
NEARLY = ((0.0, 0.95), (0.025, 0.95), (0.05, 0.95))
INNER = (0.05, 0.9)
WINDOWS = (WHOLE, *NEARLY, INNER)
VIEWS = (
    (WHOLE, WHOLE),
    *((rows, columns) for rows in NEARLY for columns in NEARLY),
    *((WHOLE, part) for part in NEARLY),
    *((part, WHOLE) for part in NEARLY),
    (INNER, INNER),
)


class Look(NamedTuple):
    """A picture from afar: its light, and its two colour differences in a few fields."""

    light: UInt8[np.ndarray, "40 40"]
    colour: UInt8[np.ndarray, "2 4 4"]


class Pair(NamedTuple):
    """Two pictures that look the same, by their places in the list."""

    first: int
    second: int
    mirrored: bool


def _basis(start: float, length: float) -> NDArray[np.float32]:
    """The cosine functions over a part of the thumbnail, integrated over each of its pixels: [F S]."""
    edges = np.clip((np.arange(SIDE + 1) / SIDE - start) / length, 0.0, 1.0)
    frequency = np.arange(FREQUENCIES)[:, None]
    waves = np.sin(np.pi * frequency * edges) / (np.pi * np.maximum(frequency, 1))
    primitive = np.where(frequency == 0, edges, waves)
    return np.diff(primitive, axis=1).astype(np.float32)


BASES = np.stack([_basis(*window) for window in WINDOWS])
_ROWS, _COLUMNS = np.meshgrid(np.arange(FREQUENCIES), np.arange(FREQUENCIES), indexing="ij")
KEPT = (_ROWS + _COLUMNS >= 1) & (_ROWS + _COLUMNS < FREQUENCIES)
WEIGHTS = (_ROWS + _COLUMNS)[KEPT].astype(np.float32)
MIRROR = np.where(_COLUMNS[KEPT] % 2 == 1, -1.0, 1.0).astype(np.float32)
"""Mirrored, a picture's odd frequencies along its rows change their sign."""


def views(lights: Float[np.ndarray, "n 40 40"]) -> Float[np.ndarray, "n views waves"]:
    """What each picture is known by, as a whole (the first view) and in part, of length one."""
    by_rows = np.einsum("wfs,nsx->wnfx", BASES, lights, optimize=True)
    waves = [
        (by_rows[WINDOWS.index(rows)] @ BASES[WINDOWS.index(columns)].T)[:, KEPT] * WEIGHTS for rows, columns in VIEWS
    ]
    stacked = np.stack(waves, axis=1)
    return stacked / np.maximum(np.linalg.norm(stacked, axis=-1, keepdims=True), 1e-6)


def near_pairs(looks: Sequence[Look]) -> list[Pair]:
    """All pairs that look the same, each once; in large crowds of the same picture, enough of them to connect it."""
    if len(looks) < 2:
        return []
    light = np.stack([look.light for look in looks])
    colour = np.stack([look.colour for look in looks]).astype(np.int16)
    chunks = [slice(start, start + CHUNK) for start in range(0, len(looks), CHUNK)]
    whole = np.concatenate([views(light[chunk].astype(np.float32))[:, 0] for chunk in chunks])
    tables = list(_tables(whole))
    found: dict[tuple[int, int], bool] = {}
    for chunk in chunks:
        seen = views(light[chunk].astype(np.float32))
        for mirrored in (False, True):
            asked = seen * MIRROR if mirrored else seen
            for first, second in _matches(asked, whole, tables, chunk.start):
                theirs = colour[second][:, :, ::-1] if mirrored else colour[second]
                if np.abs(colour[first] - theirs).mean() <= COLOUR_GAP:
                    found.setdefault((min(first, second), max(first, second)), mirrored)
    return [Pair(*pair, mirrored) for pair, mirrored in sorted(found.items())]


class _Table(NamedTuple):
    chosen: NDArray[np.int64]
    keys: NDArray[np.int64]
    order: NDArray[np.int64]


def _tables(whole: Float[np.ndarray, "n waves"]) -> Iterator[_Table]:
    """For each random choice of signs, the pictures sorted by them."""
    num_bits = int(np.clip(np.ceil(np.log2(len(whole))) + SPARE_BITS, MIN_BITS, MAX_BITS))
    random = np.random.default_rng(0)
    for _ in range(NUM_TABLES):
        chosen = random.choice(whole.shape[1], size=num_bits, replace=False)
        keys = _keys(whole, chosen)
        order = np.argsort(keys, kind="stable")
        yield _Table(chosen, keys[order], order)


def _keys(waves: Float[np.ndarray, "... waves"], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    return (waves[..., chosen] > 0) @ (1 << np.arange(len(chosen)))


def _matches(
    asked: Float[np.ndarray, "n views waves"], whole: Float[np.ndarray, "m waves"], tables: list[_Table], start: int
) -> set[tuple[int, int]]:
    """The pairs of a picture that is asked for and another that looks like one of its views."""
    pairs: set[tuple[int, int]] = set()
    rows = np.arange(asked.shape[0] * asked.shape[1])
    flat = asked.reshape(-1, asked.shape[2])
    for table in tables:
        keys = _keys(flat, table.chosen)
        low = np.searchsorted(table.keys, keys, side="left")
        counts = np.minimum(np.searchsorted(table.keys, keys, side="right") - low, CROWD)
        asking = np.repeat(rows, counts)
        offsets = np.arange(len(asking)) - np.repeat(np.cumsum(counts) - counts, counts)
        answers = table.order[np.repeat(low, counts) + offsets]
        own = asking // asked.shape[1] + start
        other = own != answers
        asking, answers, own = asking[other], answers[other], own[other]
        for part in range(0, len(asking), 2**18):
            some = slice(part, part + 2**18)
            alike = np.einsum("nw,nw->n", flat[asking[some]], whole[answers[some]]) >= ALIKE
            pairs.update(zip(own[some][alike].tolist(), answers[some][alike].tolist(), strict=True))
    return pairs


def groups(num: int, pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Which of `num` things hang together by pairs, in the order of their first members."""
    parent = list(range(num))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for first, second in pairs:
        one, other = sorted((root(first), root(second)))
        parent[other] = one
    members: dict[int, list[int]] = {}
    for index in range(num):
        members.setdefault(root(index), []).append(index)
    return [group for group in members.values() if len(group) > 1]
