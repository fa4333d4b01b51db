"""Pictures that are the same, or nearly: encoded again, resized, mirrored, or cropped by a few percent at the edges.

A picture is looked at as a thumbnail, of which the low frequencies of a cosine transform are kept, each weighted by
its frequency. The same numbers of a part of the thumbnail, or of its mirror image, come almost free, so each picture
is asked for under all of these views among the others as they are. Candidates share a random choice of signs (locality
sensitive hashing), so that time grows with the number of pictures, not with its square. What is alike as a whole must
be so in most of its parts: two pictures in the same frame are not the same picture.
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
SAMPLED = 32  # pixels of a side that are compared part by part
CELLS = 4  # parts of a side
CELLS_ALIKE = {0.25: 0.65, 0.1: 0.45}
"""The correlation that three of four, and nine of ten, parts reach. Two of 3,000 crops stay below; so do 99 % of the
pairs of different pictures in one wide frame, which are alike as a whole."""
EVEN = 4.0  # levels of deviation below which a part has nothing to compare
COLOUR_GAP = 10.0  # levels of mean difference in colour
NUM_TABLES = 24
SPARE_BITS = 4  # so that chance alone fills a place of a table with a 16th of a picture
MIN_BITS, MAX_BITS = 12, 24
CROWD = 16  # pictures of one place in a table that are compared, at most
PARTNERS = 16  # others that a picture is paired with, at most: enough to connect a crowd of the same one
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


class Thumbnail(NamedTuple):
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


def _sampler(start: float, length: float) -> NDArray[np.float32]:
    """The weights by which a part of the thumbnail is averaged to fewer pixels: [sampled S]."""
    edges, pixels = start + length * np.arange(SAMPLED + 1) / SAMPLED, np.arange(SIDE + 1) / SIDE
    shared = np.minimum(edges[1:, None], pixels[1:]) - np.maximum(edges[:-1, None], pixels[:-1])
    weights = np.maximum(shared, 0.0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


SAMPLERS = [_sampler(*window) for window in WINDOWS]
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


def near_pairs(looks: Sequence[Thumbnail]) -> list[Pair]:
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
            first, second, view = _matches(seen * MIRROR if mirrored else seen, whole, tables, chunk.start)
            theirs = colour[second][..., ::-1] if mirrored else colour[second]
            right = np.abs(colour[first] - theirs).mean(axis=(1, 2, 3)) <= COLOUR_GAP
            first, second, view = first[right], second[right], view[right]
            alike = _alike_in_parts(light[first], light[second], view, mirrored=mirrored)
            for one, other in zip(first[alike].tolist(), second[alike].tolist(), strict=True):
                found.setdefault((min(one, other), max(one, other)), mirrored)
    return [Pair(*pair, mirrored) for pair, mirrored in sorted(found.items())]


def _alike_in_parts(
    ones: UInt8[np.ndarray, "n 40 40"],
    others: UInt8[np.ndarray, "n 40 40"],
    view: NDArray[np.int64],
    *,
    mirrored: bool,
) -> NDArray[np.bool_]:
    """Whether most parts of a view of one picture look like those of the other as it is, for many pairs."""
    seen = np.empty((len(ones), SAMPLED, SAMPLED), dtype=np.float32)
    for number in np.unique(view).tolist():
        rows, columns = (SAMPLERS[WINDOWS.index(window)] for window in VIEWS[number])
        seen[view == number] = rows @ ones[view == number].astype(np.float32) @ columns.T
    asked = SAMPLERS[0] @ others.astype(np.float32) @ SAMPLERS[0].T
    cells = []
    for pictures in (seen[:, :, ::-1] if mirrored else seen, asked):
        side = SAMPLED // CELLS
        parts = pictures.reshape(-1, CELLS, side, CELLS, side).swapaxes(2, 3).reshape(-1, CELLS * CELLS, side * side)
        cells.append(parts - parts.mean(axis=2, keepdims=True))
    deviations = [np.sqrt((each**2).mean(axis=2)) for each in cells]
    correlation = (cells[0] * cells[1]).mean(axis=2) / np.maximum(deviations[0] * deviations[1], 1e-6)
    correlation[np.maximum(*deviations) <= EVEN] = np.inf  # nothing to compare: counted neither for nor against
    ordered = np.sort(correlation, axis=1)
    telling = np.isfinite(ordered).sum(axis=1)
    alike = np.ones(len(ones), dtype=bool)
    for share, least in CELLS_ALIKE.items():
        place = np.floor(share * np.maximum(telling - 1, 0)).astype(np.int64)
        alike &= ordered[np.arange(len(ones)), place] >= least
    return alike


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
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Pictures that are asked for, others that look like one of their views, and the view; the nearest few of each."""
    num_views = asked.shape[1]
    flat = asked.reshape(-1, asked.shape[2])
    rows = np.arange(len(flat))
    found: list[NDArray[np.float64]] = [np.zeros((4, 0))]
    for table in tables:
        keys = _keys(flat, table.chosen)
        low = np.searchsorted(table.keys, keys, side="left")
        counts = np.minimum(np.searchsorted(table.keys, keys, side="right") - low, CROWD)
        asking = np.repeat(rows, counts)
        offsets = np.arange(len(asking)) - np.repeat(np.cumsum(counts) - counts, counts)
        answers = table.order[np.repeat(low, counts) + offsets]
        other = asking // num_views + start != answers
        asking, answers = asking[other], answers[other]
        for part in range(0, len(asking), 2**18):
            some = slice(part, part + 2**18)
            likeness = np.einsum("nw,nw->n", flat[asking[some]], whole[answers[some]])
            near = likeness >= ALIKE
            row, answer = asking[some][near], answers[some][near]
            found.append(np.stack([row // num_views + start, answer, row % num_views, likeness[near]]))
    own, answer, view, likeness = np.concatenate(found, axis=1)
    best = np.lexsort((-likeness, answer, own))  # of each pair the best view
    own, answer, view, likeness = (each[best] for each in (own, answer, view, likeness))
    first = np.ones(len(own), dtype=bool)
    first[1:] = (own[1:] != own[:-1]) | (answer[1:] != answer[:-1])
    own, answer, view, likeness = (each[first] for each in (own, answer, view, likeness))
    nearest = np.lexsort((-likeness, own))  # of each picture the nearest others
    own, answer, view = (each[nearest] for each in (own, answer, view))
    starts = np.flatnonzero(np.concatenate([[True], own[1:] != own[:-1]])) if len(own) else np.zeros(0, dtype=np.int64)
    ranks = np.arange(len(own)) - np.repeat(starts, np.diff(np.concatenate([starts, [len(own)]])))
    few = ranks < PARTNERS
    return own[few].astype(np.int64), answer[few].astype(np.int64), view[few].astype(np.int64)
