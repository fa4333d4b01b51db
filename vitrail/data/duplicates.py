"""Finds near-duplicates: images re-encoded, resized, mirrored, or cropped by a few percent at the edges.

Each image is described by the low frequencies of the cosine transform of its thumbnail, weighted by frequency. The
descriptors of crops and of the mirror image cost almost nothing more, so all these views of each image are matched
against the whole of every other. Candidates agree in a random choice of signs (locality-sensitive hashing), so that
time grows with the number of images, not with its square. A match must hold as a whole and in most of the cells: two
images with the same border are not duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

SIDE = 40  # pixels per side of a thumbnail
CHROMA_SIDE = 4
NUM_FREQUENCIES = 13
MIN_SIMILARITY = 0.94  # different images of Oxford Pets reach 0.89, 95 % crops fall to 0.95
SAMPLED_SIDE = 32  # pixels per side, for the comparison by cells
CELLS = 4  # per side
MIN_CELL_CORRELATION = {0.25: 0.65, 0.1: 0.45}
"""The correlation that three of four cells, and nine of ten, must reach. Two of 3,000 crops stay below; so do 99 % of
the pairs of different images with the same wide border, which are similar as a whole."""
FLAT_CELL = 4.0  # levels of standard deviation up to which a cell has nothing to compare
MAX_COLOUR_GAP = 10.0  # levels of mean difference in colour
NUM_TABLES = 24
SPARE_BITS = 4  # so that by chance a bucket holds a 16th of an image
MIN_BITS, MAX_BITS = 12, 24
MAX_BUCKET = 16  # images of one bucket that are compared
MAX_PARTNERS = 16  # pairs per image: enough to connect a large group of duplicates
CHUNK = 2048
WHOLE = (0.0, 1.0)  # start and length, as fractions of a side
CROPS_95 = ((0.0, 0.95), (0.025, 0.95), (0.05, 0.95))
CROP_90 = (0.05, 0.9)
WINDOWS = (WHOLE, *CROPS_95, CROP_90)
VIEWS = (
    (WHOLE, WHOLE),
    *((rows, columns) for rows in CROPS_95 for columns in CROPS_95),
    *((WHOLE, columns) for columns in CROPS_95),
    *((rows, WHOLE) for rows in CROPS_95),
    (CROP_90, CROP_90),
)


class Thumbnail(NamedTuple):
    """A small version of an image: its luma, and its two chroma channels at a lower resolution."""

    luma: UInt8[np.ndarray, "40 40"]
    chroma: UInt8[np.ndarray, "2 4 4"]


class DuplicatePair(NamedTuple):
    """Two images that look the same, by their indices in the list."""

    first: int
    second: int
    mirrored: bool


def _basis(start: float, length: float) -> NDArray[np.float32]:
    """The cosine basis over a window of the thumbnail, integrated over each pixel: [frequencies S]."""
    edges = np.clip((np.arange(SIDE + 1) / SIDE - start) / length, 0.0, 1.0)
    frequency = np.arange(NUM_FREQUENCIES)[:, None]
    waves = np.sin(np.pi * frequency * edges) / (np.pi * np.maximum(frequency, 1))
    primitive = np.where(frequency == 0, edges, waves)
    return np.diff(primitive, axis=1).astype(np.float32)


def _sampler(start: float, length: float) -> NDArray[np.float32]:
    """The weights that average a window of the thumbnail to fewer pixels: [sampled S]."""
    edges, pixels = start + length * np.arange(SAMPLED_SIDE + 1) / SAMPLED_SIDE, np.arange(SIDE + 1) / SIDE
    overlap = np.minimum(edges[1:, None], pixels[1:]) - np.maximum(edges[:-1, None], pixels[:-1])
    weights = np.maximum(overlap, 0.0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


SAMPLERS = [_sampler(*window) for window in WINDOWS]
BASES = np.stack([_basis(*window) for window in WINDOWS])
_ROWS, _COLUMNS = np.meshgrid(np.arange(NUM_FREQUENCIES), np.arange(NUM_FREQUENCIES), indexing="ij")
LOW_FREQUENCIES = (_ROWS + _COLUMNS >= 1) & (_ROWS + _COLUMNS < NUM_FREQUENCIES)
WEIGHTS = (_ROWS + _COLUMNS)[LOW_FREQUENCIES].astype(np.float32)
MIRROR = np.where(_COLUMNS[LOW_FREQUENCIES] % 2 == 1, -1.0, 1.0).astype(np.float32)
"""Mirroring an image changes the sign of its odd frequencies along the rows."""


def describe_views(luma: Float[np.ndarray, "n 40 40"]) -> Float[np.ndarray, "n views waves"]:
    """The descriptors of each image, as a whole (the first view) and cropped, of length one."""
    by_rows = np.einsum("wfs,nsx->wnfx", BASES, luma, optimize=True)
    waves = [
        (by_rows[WINDOWS.index(rows)] @ BASES[WINDOWS.index(columns)].T)[:, LOW_FREQUENCIES] * WEIGHTS
        for rows, columns in VIEWS
    ]
    stacked = np.stack(waves, axis=1)
    return stacked / np.maximum(np.linalg.norm(stacked, axis=-1, keepdims=True), 1e-6)


def find_near_duplicates(thumbnails: Sequence[Thumbnail]) -> list[DuplicatePair]:
    """All pairs that look the same, each once; in a large group of duplicates, enough pairs to connect it."""
    if len(thumbnails) < 2:
        return []
    luma = np.stack([thumbnail.luma for thumbnail in thumbnails])
    chroma = np.stack([thumbnail.chroma for thumbnail in thumbnails]).astype(np.int16)
    chunks = [slice(start, start + CHUNK) for start in range(0, len(thumbnails), CHUNK)]
    whole = np.concatenate([describe_views(luma[chunk].astype(np.float32))[:, 0] for chunk in chunks])
    tables = list(_tables(whole))
    found: dict[tuple[int, int], bool] = {}
    for chunk in chunks:
        views = describe_views(luma[chunk].astype(np.float32))
        for mirrored in (False, True):
            first, second, view = _match(views * MIRROR if mirrored else views, whole, tables, chunk.start)
            theirs = chroma[second][..., ::-1] if mirrored else chroma[second]
            same_colour = np.abs(chroma[first] - theirs).mean(axis=(1, 2, 3)) <= MAX_COLOUR_GAP
            first, second, view = first[same_colour], second[same_colour], view[same_colour]
            similar = _cells_match(luma[first], luma[second], view, mirrored=mirrored)
            for one, other in zip(first[similar].tolist(), second[similar].tolist(), strict=True):
                found.setdefault((min(one, other), max(one, other)), mirrored)
    return [DuplicatePair(*pair, mirrored) for pair, mirrored in sorted(found.items())]


def _cells_match(
    ones: UInt8[np.ndarray, "n 40 40"],
    others: UInt8[np.ndarray, "n 40 40"],
    view: NDArray[np.int64],
    *,
    mirrored: bool,
) -> NDArray[np.bool_]:
    """For each pair, whether most cells of a view of one image correlate with those of the whole other."""
    viewed = np.empty((len(ones), SAMPLED_SIDE, SAMPLED_SIDE), dtype=np.float32)
    for number in np.unique(view).tolist():
        rows, columns = (SAMPLERS[WINDOWS.index(window)] for window in VIEWS[number])
        viewed[view == number] = rows @ ones[view == number].astype(np.float32) @ columns.T
    whole = SAMPLERS[0] @ others.astype(np.float32) @ SAMPLERS[0].T
    cells = []
    for images in (viewed[:, :, ::-1] if mirrored else viewed, whole):
        side = SAMPLED_SIDE // CELLS
        grid = images.reshape(-1, CELLS, side, CELLS, side).swapaxes(2, 3).reshape(-1, CELLS * CELLS, side * side)
        cells.append(grid - grid.mean(axis=2, keepdims=True))
    deviations = [np.sqrt((each**2).mean(axis=2)) for each in cells]
    correlation = (cells[0] * cells[1]).mean(axis=2) / np.maximum(deviations[0] * deviations[1], 1e-6)
    correlation[np.maximum(*deviations) <= FLAT_CELL] = np.inf  # nothing to compare: sorted last and not counted
    ordered = np.sort(correlation, axis=1)
    num_compared = np.isfinite(ordered).sum(axis=1)
    match = np.ones(len(ones), dtype=bool)
    for quantile, least in MIN_CELL_CORRELATION.items():
        place = np.floor(quantile * np.maximum(num_compared - 1, 0)).astype(np.int64)
        match &= ordered[np.arange(len(ones)), place] >= least
    return match


class _HashTable(NamedTuple):
    bits: NDArray[np.int64]
    keys: NDArray[np.int64]
    order: NDArray[np.int64]


def _tables(whole: Float[np.ndarray, "n waves"]) -> Iterator[_HashTable]:
    """For each random choice of signs, the images sorted by them."""
    num_bits = int(np.clip(np.ceil(np.log2(len(whole))) + SPARE_BITS, MIN_BITS, MAX_BITS))
    rng = np.random.default_rng(0)
    for _ in range(NUM_TABLES):
        bits = rng.choice(whole.shape[1], size=num_bits, replace=False)
        keys = _hash(whole, bits)
        order = np.argsort(keys, kind="stable")
        yield _HashTable(bits, keys[order], order)


def _hash(waves: Float[np.ndarray, "... waves"], bits: NDArray[np.int64]) -> NDArray[np.int64]:
    return (waves[..., bits] > 0) @ (1 << np.arange(len(bits)))


def _match(
    queries: Float[np.ndarray, "n views waves"],
    whole: Float[np.ndarray, "m waves"],
    tables: list[_HashTable],
    start: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The queried images, the others that resemble one of their views, and the view; the nearest few of each."""
    num_views = queries.shape[1]
    flat = queries.reshape(-1, queries.shape[2])
    rows = np.arange(len(flat))
    found: list[NDArray[np.float64]] = [np.zeros((4, 0))]
    for table in tables:
        keys = _hash(flat, table.bits)
        low = np.searchsorted(table.keys, keys, side="left")
        counts = np.minimum(np.searchsorted(table.keys, keys, side="right") - low, MAX_BUCKET)
        query = np.repeat(rows, counts)
        offsets = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
        candidate = table.order[np.repeat(low, counts) + offsets]
        distinct = query // num_views + start != candidate
        query, candidate = query[distinct], candidate[distinct]
        for part in range(0, len(query), 2**18):
            chunk = slice(part, part + 2**18)
            similarity = np.einsum("nw,nw->n", flat[query[chunk]], whole[candidate[chunk]])
            near = similarity >= MIN_SIMILARITY
            row, match = query[chunk][near], candidate[chunk][near]
            found.append(np.stack([row // num_views + start, match, row % num_views, similarity[near]]))
    own, match, view, similarity = np.concatenate(found, axis=1)
    best = np.lexsort((-similarity, match, own))  # the best view of each pair
    own, match, view, similarity = (each[best] for each in (own, match, view, similarity))
    first = np.ones(len(own), dtype=bool)
    first[1:] = (own[1:] != own[:-1]) | (match[1:] != match[:-1])
    own, match, view, similarity = (each[first] for each in (own, match, view, similarity))
    nearest = np.lexsort((-similarity, own))  # the nearest others of each image
    own, match, view = (each[nearest] for each in (own, match, view))
    starts = np.flatnonzero(np.concatenate([[True], own[1:] != own[:-1]])) if len(own) else np.zeros(0, dtype=np.int64)
    ranks = np.arange(len(own)) - np.repeat(starts, np.diff(np.concatenate([starts, [len(own)]])))
    few = ranks < MAX_PARTNERS
    return own[few].astype(np.int64), match[few].astype(np.int64), view[few].astype(np.int64)
