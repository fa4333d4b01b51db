"""Mixed images and epoch orders have the stated composition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.augment import Augment
from vitrail.data.mix import mix, one_hot
from vitrail.data.prepare.image import image_loader
from vitrail.data.rng import epoch_order
from vitrail.data.table import NO_SPLIT, Table
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError

seeds = st.integers(0, 2**32)
nums = st.integers(0, 9)
alphas = st.floats(0.05, 5)
sides = st.tuples(st.integers(1, 20), st.integers(1, 20))


def mixed(num: int, size: tuple[int, int], seed: int, first: int = 0, **rates: float):
    """Images with one class each, before and after mixing."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num, 3, *size, generator=generator)
    targets = one_hot(torch.arange(num), num) if num else torch.zeros(0, 5)
    return (
        images,
        targets,
        *mix(images, targets, Augment(**rates), seed=seed, epoch=1, positions=range(first, first + len(images))),
    )


def partners(num: int) -> list[tuple[int, int]]:
    return [(place, place ^ 1) for place in range(num - num % 2)]


@settings(deadline=None)
@given(nums, sides, seeds, alphas, alphas)
def test_targets_sum_to_one(num: int, size, seed: int, mixup: float, cutmix: float) -> None:
    images, targets, mixed_images, weights = mixed(num, size, seed, mixup=mixup, cutmix=cutmix)
    assert mixed_images.shape == images.shape
    assert weights.shape == targets.shape
    assert (weights >= 0).all()
    assert torch.allclose(weights.sum(1), torch.ones(num))
    for place in range(num):
        others = {place, place ^ 1 if (place ^ 1) < num else place}
        assert set(weights[place].nonzero().flatten().tolist()) <= others


@settings(deadline=None)
@given(nums, sides, seeds, alphas)
def test_mixup_is_the_stated_mean(num: int, size, seed: int, alpha: float) -> None:
    images, _, mixed_images, weights = mixed(num, size, seed, mixup=alpha)
    for one, other in partners(num):
        expected = weights[one, one] * images[one] + weights[one, other] * images[other]
        assert torch.allclose(mixed_images[one], expected, atol=1e-5)
        assert weights[one, one] == weights[other, other]


@settings(deadline=None)
@given(nums, sides, seeds, alphas)
def test_cutmix_takes_each_pixel_from_one(num: int, size, seed: int, alpha: float) -> None:
    images, _, mixed_images, weights = mixed(num, size, seed, cutmix=alpha)
    for one, other in partners(num):
        own, foreign = ((mixed_images[one] == images[which]).all(0) for which in (one, other))
        assert (own ^ foreign).all()
        assert own.float().mean().item() == pytest.approx(weights[one, one].item(), abs=1e-6)
        if foreign.any():
            ys, xs = foreign.nonzero(as_tuple=True)
            assert foreign[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1].all()


@settings(deadline=None)
@given(st.sampled_from([1, 3, 5, 7]), seeds, alphas, alphas)
def test_an_odd_last_image_is_not_mixed(num: int, seed: int, mixup: float, cutmix: float) -> None:
    images, targets, mixed_images, weights = mixed(num, (4, 6), seed, mixup=mixup, cutmix=cutmix)
    assert torch.equal(mixed_images[-1], images[-1])
    assert torch.equal(weights[-1], targets[-1])


@settings(deadline=None)
@given(seeds, st.integers(0, 3), st.integers(0, 100))
def test_a_part_of_a_batch_is_mixed_as_in_the_whole(seed: int, pairs: int, start: int) -> None:
    images, targets, mixed_images, weights = mixed(8, (5, 5), seed, first=2 * start, mixup=0.8, cutmix=1.0)
    begin = 2 * pairs
    part = mix(
        images[begin:],
        targets[begin:],
        Augment(mixup=0.8, cutmix=1.0),
        seed=seed,
        epoch=1,
        positions=range(2 * start + begin, 2 * start + 8),
    )
    assert torch.equal(part[0], mixed_images[begin:])
    assert torch.equal(part[1], weights[begin:])


def test_both_kinds_occur_and_pairs_differ() -> None:
    images, _, mixed_images, weights = mixed(400, (8, 8), 0, mixup=0.8, cutmix=1.0)
    cut = sum(
        bool(((mixed_images[one] == images[one]) | (mixed_images[one] == images[two])).all())
        for one, two in partners(400)
    )
    assert 120 < cut < 280
    assert len(weights.diagonal().unique()) > 100


def table_of(labels: list[int]) -> Table:
    return Table(
        origin="memory",
        names=[str(row) for row in range(len(labels))],
        classes=("a", "b", "c"),
        labels=np.array(labels, dtype=np.int32),
        splits=np.full(len(labels), NO_SPLIT, dtype=np.int8),
        content=lambda index: np.full((4, 4, 3), index, np.uint8),
    )


def test_the_loader_mixes_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("vitrail.data.mix.mix", lambda images, targets, *_, **__: calls.append(1) or (images, targets))
    for augment in (None, Augment(), Augment(mixup=0.5), Augment(cutmix=0.5)):
        loader = image_loader(table_of([0, 1]), Preprocess(size=(4, 4)), batch_size=2, augment=augment, workers=0)
        batch = next(loader.batches())
        assert batch.fields["label"].ndim == 1 + len(calls)
        assert len(calls) == (augment is not None and augment.mixup + augment.cutmix > 0)
        calls.clear()


def test_each_pair_of_each_epoch_is_mixed_in_its_own_way() -> None:
    loader = image_loader(
        table_of([0, 1] * 6),
        Preprocess(size=(4, 4)),
        batch_size=4,
        augment=Augment(mixup=1.0),
        workers=0,
    )
    weights = {batch.fields["label"][place, 0].item() for batch in loader.batches(0, 6) for place in (0, 2)}
    assert len(weights) == 12


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(-(2**70), 2**70), st.integers(0, 1000))
def test_an_epoch_is_a_permutation(num: int, seed: int, epoch: int) -> None:
    order, times = epoch_order(num, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(num))
    assert not times.any()
    assert np.array_equal(order, epoch_order(num, seed=seed, epoch=epoch)[0])
    plain, times = epoch_order(num, seed=seed, epoch=epoch, shuffle=False)
    assert plain.tolist() == list(range(num))
    assert not times.any()


@settings(deadline=None)
@given(st.integers(30, 300), seeds, st.integers(0, 1000))
def test_seeds_and_epochs_change_the_order(num: int, seed: int, epoch: int) -> None:
    orders = {
        tuple(epoch_order(num, seed=one, epoch=two)[0].tolist())
        for one, two in ((seed, epoch), (seed + 1, epoch), (seed, epoch + 1), (seed + 1, epoch + 1))
    }
    assert len(orders) == 4


@settings(deadline=None)
@given(st.integers(1, 300), seeds, st.integers(2, 7))
def test_repeats(num: int, seed: int, repeats: int) -> None:
    order, times = epoch_order(num, seed=seed, epoch=0, repeats=repeats)
    assert len(order) == num
    for start in range(0, num, repeats):
        run = order[start : start + repeats]
        assert len(set(run.tolist())) == 1
        assert times[start : start + repeats].tolist() == list(range(len(run)))
    assert len(set(order.tolist())) == -(-num // repeats)


labels = st.lists(st.sampled_from([0, 0, 0, 0, 3, 3, 5]), min_size=1, max_size=200)


def class_counts(labels: list[int], order: np.ndarray) -> list[int]:
    shown = np.array(labels)[order]
    return [int((shown == label).sum()) for label in set(labels)]


@settings(deadline=None)
@given(labels, seeds)
def test_balance(labels: list[int], seed: int) -> None:
    classes = np.array(labels, dtype=np.int32)
    order, times = epoch_order(len(labels), seed=seed, epoch=0, balance=classes)
    counts = class_counts(labels, order)
    assert sum(counts) == len(labels)
    assert max(counts) - min(counts) <= 1
    seen: dict[int, int] = {}
    for row, before in zip(order.tolist(), times.tolist(), strict=True):
        assert before == seen.get(row, 0)
        seen[row] = before + 1
    for label, count in zip(set(labels), counts, strict=True):  # each image of a class in turn
        rounds = [seen.get(row, 0) for row in np.flatnonzero(classes == label).tolist()]
        assert sum(rounds) == count
        assert max(rounds) - min(rounds) <= 1


@settings(deadline=None)
@given(labels, seeds, st.integers(2, 4))
def test_balance_with_repeats(labels: list[int], seed: int, repeats: int) -> None:
    """Classes differ by at most one run of repeats and the run that the end of the epoch cuts off."""
    order, _ = epoch_order(len(labels), seed=seed, epoch=0, repeats=repeats, balance=np.array(labels, dtype=np.int32))
    counts = class_counts(labels, order)
    assert sum(counts) == len(labels)
    assert max(counts) - min(counts) < 2 * repeats


def test_balance_without_labels() -> None:
    with pytest.raises(DataError, match=r"balanced sampling needs labels"):
        epoch_order(0, seed=0, epoch=0, balance=np.zeros(0, dtype=np.int32))
