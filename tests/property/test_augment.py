"""Augmentation of images of any size: decided by seeds alone, and doing what its fields say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from vitrail.data import augment as augmenting
from vitrail.data.augment import OPERATIONS, Augment
from vitrail.data.resize import MAX_WHOLE, resize_part
from vitrail.data.rng import make_rng
from vitrail.data.transform import Preprocess

sides = st.integers(1, 64)
seeds = st.integers(-(2**63), 2**64)
rates = st.floats(0, 1)
quiet = {"flip_rate": 0.0}


def spec_of(rows: int, columns: int, channels: int = 3) -> Preprocess:
    fields = {} if channels == 3 else {"mode": "grey", "mean": [0.5], "std": [0.5]}
    return Preprocess.parse({"size": [rows, columns], **fields})


def noise(rows: int, columns: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, channels), dtype=np.uint8)


def augmented(augment: Augment, spec: Preprocess, image: np.ndarray, **draw: int) -> np.ndarray:
    """The augmented image as the loader makes it: resized to its stored size first."""
    keys = {"seed": 0, "epoch": 0, **draw}
    return augment.apply(spec, augment.resize_to_stored(spec, image), make_rng("pixels", **keys))


@st.composite
def augments(draw: st.DrawFn) -> Augment:
    lowest, highest = sorted((draw(st.floats(0.01, 1)), draw(st.floats(0.01, 1))))
    narrow, wide = sorted((draw(st.floats(0.1, 10)), draw(st.floats(0.1, 10))))
    return Augment(
        crop=draw(st.sampled_from(["resized", "random", "padded"])),
        policy=draw(st.sampled_from(["none", "rand", "three"])),
        scale=(lowest, highest),
        ratio=(narrow, wide),
        padding=draw(st.floats(0.01, 1)),
        flip_rate=draw(rates),
        num_ops=draw(st.integers(1, 4)),
        magnitude=draw(st.floats(0, 10)),
        jitter=draw(st.floats(0, 2)),
        erase_rate=draw(rates),
        spare=draw(st.floats(1, 3)),
    )


@settings(max_examples=400, deadline=None)
@given(
    augments(),
    st.tuples(sides, sides),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from([1, 3]),
    seeds,
    st.integers(0, 2**32),
)
def test_size_and_seed(augment: Augment, stored, size, channels: int, seed: int, index: int) -> None:
    spec, pixels = spec_of(*size, channels), noise(*stored, channels)
    before = pixels.copy()
    first, second = (augmented(augment, spec, pixels, seed=seed, epoch=3, index=index, repeat=2) for _ in range(2))
    assert first.shape == (*size, channels)
    assert first.dtype == np.uint8
    assert np.array_equal(first, second)
    assert np.array_equal(pixels, before)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["resized", "random", "padded"]), seeds, st.integers(0, 2**40), st.integers(0, 2**20))
def test_another_seed_gives_another_image(crop: str, seed: int, index: int, epoch: int) -> None:
    """Two crops may agree by chance, but not two rectangles of noise."""
    augment, spec, pixels = Augment(crop=crop, erase_rate=1.0), spec_of(24, 24), noise(32, 40)
    draw = {"seed": seed, "epoch": epoch, "index": index}
    others = [{}, {"seed": seed + 1}, {"epoch": epoch + 1}, {"index": index + 1}, {"repeat": 1}, {"repeat": 2}]
    assert len({augmented(augment, spec, pixels, **{**draw, **other}).tobytes() for other in others}) == 6


@settings(deadline=None)
@given(st.tuples(sides, sides), st.sampled_from([1, 3]), seeds)
def test_flip_rates(size, channels: int, seed: int) -> None:
    spec, pixels = spec_of(*size, channels), noise(*size, channels)
    whole = {"crop": "random"}  # an image of the model's size has only one crop
    assert np.array_equal(augmented(Augment(**whole, flip_rate=0.0), spec, pixels, seed=seed), pixels)
    assert np.array_equal(augmented(Augment(**whole, flip_rate=1.0), spec, pixels, seed=seed), pixels[:, ::-1])


def test_half_are_flipped() -> None:
    spec, pixels = spec_of(8, 8), noise(8, 8)
    flips = sum(
        not np.array_equal(augmented(Augment(crop="random"), spec, pixels, index=i), pixels) for i in range(400)
    )
    assert 150 < flips < 250


@settings(deadline=None)
@given(sides, st.sampled_from([1, 3]), seeds)
def test_the_full_crop_changes_nothing(side: int, channels: int, seed: int) -> None:
    spec, pixels = spec_of(side, side, channels), noise(side, side, channels)
    same = Augment(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip_rate=0.0, jitter=0.0, erase_rate=0.0)
    assert np.array_equal(augmented(same, spec, pixels, seed=seed), pixels)


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 64), st.floats(0.05, 1), seeds)
def test_crops_keep_to_their_area_and_shape(rows: int, columns: int, least: float, seed: int) -> None:
    parts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augmenting, "resize", lambda part, *_: parts.append(part) or np.zeros((8, 8, 3), np.uint8))
        augment = Augment(scale=(least, 1.0), ratio=(0.5, 2.0))
        augment.apply(spec_of(8, 8), noise(rows, columns), make_rng("pixels", seed=seed, epoch=0))
    height, width = parts[0].shape[:2]
    assert height <= rows
    assert width <= columns
    assert (height - 1) / (width + 1) <= 2  # up to a pixel, because sides are integers
    assert (width - 1) / (height + 1) <= 2
    if 0.5 <= rows / columns <= 2:
        assert (height + 1) * (width + 1) >= least * rows * columns


@settings(deadline=None)
@given(st.integers(24, 40), st.integers(24, 40), st.sampled_from([1, 3]), seeds)
def test_erasing_changes_one_rectangle(rows: int, columns: int, channels: int, seed: int) -> None:
    spec, pixels = spec_of(rows, columns, channels), np.full((rows, columns, channels), 7, np.uint8)
    erased = augmented(Augment(crop="random", erase_rate=1.0, **quiet), spec, pixels, seed=seed)
    assert (pixels == 7).all()  # a source's own array is not changed
    ys, xs = np.nonzero((erased != 7).any(axis=2))
    area = (ys.max() - ys.min() + 1) * (xs.max() - xs.min() + 1)
    assert area <= rows * columns / 3 + rows + columns
    inside = erased[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    assert (inside != 7).mean() > 0.5  # noise may hit 7 as well, but seldom


@settings(deadline=None)
@given(st.tuples(sides, sides), st.sampled_from([1, 3]), seeds, rates)
def test_a_padded_crop_is_a_shifted_copy(size, channels: int, seed: int, padding: float) -> None:
    """Wherever the crop and the image overlap, they agree; the rest is reflected from the image."""
    spec, pixels = spec_of(*size, channels), noise(*size, channels)
    augment = Augment(crop="padded", padding=max(padding, 0.01), **quiet)
    crop = augmented(augment, spec, pixels, seed=seed)
    pads = [max(1, round(side * augment.padding)) for side in size]
    (rows, columns), (most_down, most_across) = size, pads

    def overlap(array: np.ndarray, down: int, across: int) -> np.ndarray:
        return array[max(0, down) : rows + min(0, down), max(0, across) : columns + min(0, across)]

    shifts = [(y, x) for y in range(-most_down, most_down + 1) for x in range(-most_across, most_across + 1)]
    assert any(np.array_equal(overlap(pixels, y, x), overlap(crop, -y, -x)) for y, x in shifts)
    assert set(np.unique(crop)) <= set(np.unique(pixels))


def test_padded_crops_reach_every_shift() -> None:
    spec, pixels = spec_of(8, 8), noise(8, 8)
    crops = {augmented(Augment(crop="padded", **quiet), spec, pixels, index=i).tobytes() for i in range(300)}
    assert len(crops) == 9  # a padding of one pixel
    assert pixels.tobytes() in crops


@pytest.mark.parametrize("operation", range(len(OPERATIONS)))
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_operations_keep_size_and_mode(operation: int, strength: float, sign: float, mode: str) -> None:
    for size in ((1, 1), (1, 9), (13, 7)):
        image = Image.fromarray(noise(*size)).convert(mode)
        before = image.tobytes()
        changed = OPERATIONS[operation](image, strength, sign)
        assert (changed.mode, changed.size) == (mode, image.size)
        assert image.tobytes() == before


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_every_operation_does_something_of_its_own(mode: str) -> None:
    image = Image.fromarray(noise(32, 32) // 2 + 40).convert(mode)
    results = {operation(image, 0.8, 1.0).tobytes() for operation in OPERATIONS}
    own = len(OPERATIONS) - (mode == "L")  # colour does not change grey images
    assert len(results - {image.tobytes()}) == own


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.integers(1, 40), seeds)
def test_strength_zero_changes_nothing(rows: int, columns: int, seed: int) -> None:
    """Colour, contrast, brightness, sharpness, rotation, shears and shifts, but not those that have no strength."""
    image = Image.fromarray(noise(rows, columns, seed=seed % 2**32))
    for operation in OPERATIONS[6:]:
        assert operation(image, 0.0, 1.0).tobytes() == image.tobytes()
    assert OPERATIONS[4](image, 0.0, 1.0).tobytes() == image.tobytes()


@pytest.mark.parametrize("channels", [1, 3])
def test_three_augment_does_all_three(channels: int) -> None:
    spec, pixels = spec_of(32, 32, channels), noise(32, 32, channels)
    image = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    grey = np.array(image.convert("L").convert(image.mode)).reshape(pixels.shape)
    solarised = np.array(ImageOps.solarize(image, 128)).reshape(pixels.shape)
    counts: Counter[str] = Counter()
    for index in range(300):
        changed = augmented(Augment(crop="random", policy="three", **quiet), spec, pixels, index=index)
        if np.array_equal(changed, grey):
            counts["grey"] += 1
        elif np.array_equal(changed, solarised):
            counts["solarised"] += 1
        else:
            assert changed.astype(float).std() <= pixels.astype(float).std()
            counts["blurred"] += 1
    assert len(counts) == 3
    assert min(counts.values()) > 70


@settings(deadline=None)
@given(st.tuples(sides, sides), seeds, st.floats(0.01, 0.5))
def test_jitter_keeps_within_its_strength(size, seed: int, jitter: float) -> None:
    """Only the brightness of a flat grey image can change, and by no more than the strength."""
    spec, pixels = spec_of(*size), np.full((*size, 3), 100, np.uint8)
    changed = augmented(Augment(crop="random", jitter=jitter, **quiet), spec, pixels, seed=seed).astype(float)
    assert np.ptp(changed) == 0
    assert abs(changed.flat[0] - 100) <= 100 * jitter + 2


@pytest.mark.parametrize("crop", ["resized", "random", "padded"])
def test_a_line_of_pixels_is_not_resized_whole(crop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JPEG of 1 x 16,384 covers 224 x 3,670,016: 2.5 GB, of which 224 x 224 are kept."""
    areas = []
    resize = augmenting.resize

    def watched(pixels: np.ndarray, rows: int, columns: int, kernel: str) -> np.ndarray:
        areas.append(rows * columns)
        small = rows * columns <= MAX_WHOLE
        return resize(pixels, rows, columns, kernel) if small else np.broadcast_to(pixels[:1, :1], (rows, columns, 3))

    monkeypatch.setattr(augmenting, "resize", watched)
    monkeypatch.setattr("vitrail.data.resize.resize", watched)
    assert augmented(Augment(crop=crop), spec_of(224, 224), noise(1, 16_384)).shape == (224, 224, 3)
    assert max(areas, default=0) <= MAX_WHOLE


@settings(max_examples=60, deadline=None)
@given(rows=sides, columns=sides, crop=st.floats(0.3, 1.0), resize=st.sampled_from(["cover", "squash"]))
def test_a_random_crop_is_of_the_image_that_covers_the_size(rows: int, columns: int, crop: float, resize: str) -> None:
    """Whatever part of it evaluation crops; and without validating a specification for each image."""
    spec = Preprocess.parse({"size": [12, 9], "crop": crop, "resize": resize})
    image, rng = noise(rows, columns), make_rng("pixels", seed=3, epoch=0)
    whole = spec.override({"crop": 1.0}).resize_size(rows, columns)
    top, left = int(rng.integers(whole[0] - 12 + 1)), int(rng.integers(whole[1] - 9 + 1))
    expected = resize_part(image, whole, (top, left), (12, 9), spec.kernel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Preprocess, "parse", lambda *_: pytest.fail("validated again"))
        found = Augment(crop="random", **quiet).apply(spec, image, make_rng("pixels", seed=3, epoch=0))
    assert np.array_equal(found, expected)
