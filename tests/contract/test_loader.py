"""The loader gives the same order and the same pixels, however the work is divided or interrupted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contract.small_images import table_of, write_folder, write_shards
from vitrail.batch import Batch
from vitrail.data.augment import Augment
from vitrail.data.cache import PixelCache
from vitrail.data.loader import Loader
from vitrail.data.prepare.image import image_loader
from vitrail.data.reader import form
from vitrail.data.table import Source, Table
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError

SPEC = Preprocess(size=(24, 24), crop=0.9)
CHANGED = Augment(policy="rand", jitter=0.3, erase_rate=0.5)
MIXED = Augment(mixup=0.8, cutmix=1.0, erase_rate=0.5)
OPTIONS = {
    "in order": {"shuffle": False},
    "plain": {},
    "dropped": {"drop_last": True},
    "changed": {"augment": CHANGED},
    "mixed": {"augment": MIXED},
    "random": {"augment": Augment(crop="random", policy="three")},
    "padded": {"augment": Augment(crop="padded", mixup=0.8)},
    "repeated": {"augment": Augment(repeats=3)},
    "balanced": {"balanced": True, "augment": CHANGED},
    "all": {"balanced": True, "augment": MIXED.override({"repeats": 3, "policy": "three"})},
}
STREAMED = ("in order", "plain", "dropped", "changed", "mixed")
CASES = [("table", case) for case in OPTIONS] + [("stream", case) for case in STREAMED]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    """37 images each: four batches of 8, and one of 5."""
    root = tmp_path_factory.mktemp("data")
    return {"table": write_folder(root / "table"), "stream": write_shards(root / "stream")}


def loader_of(source: Source, **options) -> Loader:
    fields = {"batch_size": 8, "shuffle": True, "seed": 7, "workers": 0, **options}
    return image_loader(source, SPEC, **fields)


def same(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.names == other.names
        assert torch.equal(one.indices, other.indices)
        assert torch.equal(one.fields["label"], other.fields["label"])
        assert torch.equal(one.fields["image"], other.fields["image"])


def joined(parts: list[list[Batch]]) -> list[Batch]:
    """The batches of all ranks, concatenated."""
    return [
        Batch(
            {name: torch.cat([one.fields[name] for one in batch]) for name in batch[0].fields},
            torch.cat([one.indices for one in batch]),
            sum((one.names for one in batch), ()),
        )
        for batch in zip(*parts, strict=True)
    ]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(("source", "case"), CASES)
def test_any_number_of_workers(sources: dict[str, Source], source: str, case: str, workers: int) -> None:
    alone, helped = (loader_of(sources[source], workers=num, **OPTIONS[case]) for num in (0, workers))
    same(list(helped.batches(0, 7)), list(alone.batches(0, 7)))


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(("source", "case"), CASES)
def test_any_number_of_ranks(sources: dict[str, Source], source: str, case: str, world: int) -> None:
    parts = [
        list(loader_of(sources[source], rank=rank, world=world, workers=rank, **OPTIONS[case]).batches(0, 7))
        for rank in range(world)
    ]
    assert all(len(part[0].names) == 8 // world for part in parts)
    same(joined(parts), list(loader_of(sources[source], **OPTIONS[case]).batches(0, 7)))


@pytest.mark.parametrize(("source", "case"), CASES)
def test_started_anywhere(sources: dict[str, Source], source: str, case: str) -> None:
    """Step 37 lies in the eighth epoch, and the last one shown in the ninth."""
    loader = loader_of(sources[source], workers=2, **OPTIONS[case])
    same(list(loader.batches(37, 43)), list(loader.batches(0, 43))[37:])


@pytest.mark.parametrize(("source", "case"), CASES)
def test_cached_or_not(sources: dict[str, Source], source: str, case: str, tmp_path: Path) -> None:
    options = OPTIONS[case]
    plain = list(loader_of(sources[source], **options).batches(0, 7))
    cache = PixelCache(form(SPEC, options.get("augment")), limit_gb=0.1, folder=tmp_path)
    for workers in (2, 0, 4):  # cold, then warm
        same(list(loader_of(sources[source], workers=workers, cache=cache, **options).batches(0, 7)), plain)
    cache.close()


@pytest.mark.parametrize("source", ["table", "stream"])
def test_an_epoch_shows_each_image_once(sources: dict[str, Source], source: str) -> None:
    loader = loader_of(sources[source], workers=2)
    orders = [torch.cat([batch.indices for batch in loader.epoch(epoch)]).tolist() for epoch in (0, 1)]
    orders += [torch.cat([batch.indices for batch in loader_of(sources[source], seed=8).epoch()]).tolist()]
    assert all(sorted(order) == list(range(37)) for order in orders)
    assert len({*map(tuple, orders), tuple(range(37))}) == 4
    assert loader.steps_per_epoch == 5
    assert [len(batch.names) for batch in loader.epoch(1)] == [8, 8, 8, 8, 5]


def test_names_and_labels_belong_to_the_image(sources: dict[str, Source]) -> None:
    for source in sources.values():
        known = {item.name: (item.index, *item.labels) for item in source}
        for batch in loader_of(source).epoch():
            for name, index, label in zip(batch.names, batch.indices, batch.fields["label"], strict=True):
                assert known[name] == (index, label)


def test_without_augmentation_the_pixels_are_those_of_the_preprocessing(sources: dict[str, Source]) -> None:
    source = sources["table"]
    for batch in loader_of(source).batches(0, 2):
        for index, image in zip(batch.indices.tolist(), batch.fields["image"], strict=True):
            pixels = SPEC.resize_and_crop(SPEC.decode(source[index].content()))
            assert torch.equal(image, SPEC.normalise(pixels[None])[0])


def test_seeds_and_epochs_change_the_pixels(sources: dict[str, Source]) -> None:
    def shown(seed: int, epoch: int) -> torch.Tensor:
        loader = loader_of(sources["table"], seed=seed, augment=Augment())
        batches = list(loader.epoch(epoch))
        order = torch.cat([batch.indices for batch in batches]).argsort()
        return torch.cat([batch.fields["image"] for batch in batches])[order]

    first = shown(0, 0)
    assert torch.equal(first, shown(0, 0))
    for other in (shown(1, 0), shown(0, 1)):
        assert (first != other).flatten(1).any(1).all()


def test_balanced_sampling_evens_out_90_9_1() -> None:
    source = table_of([0] * 90 + [1] * 9 + [2])
    for epoch in range(4):
        batches = list(loader_of(source, balanced=True, batch_size=10).epoch(epoch))
        counts = torch.cat([batch.fields["label"] for batch in batches]).bincount()
        assert sorted(counts.tolist()) == [33, 33, 34]
        rare = torch.cat([batch.indices for batch in batches]).bincount(minlength=100)[90:99]
        assert set(rare.tolist()) <= {3, 4}  # each image of a class once before any is shown again


def test_balanced_sampling_augments_a_rare_image_differently_each_time() -> None:
    """The only image of its class is shown 33 times, with a different augmentation each time."""
    source = table_of([0] * 90 + [1] * 9 + [2], side=24)
    batches = list(loader_of(source, balanced=True, batch_size=10, augment=Augment()).epoch())
    images = torch.cat([batch.fields["image"] for batch in batches])[
        torch.cat([batch.indices for batch in batches]) == 99
    ]
    assert len(images.flatten(1).unique(dim=0)) == len(images) >= 33


@pytest.mark.parametrize("source", ["table", "stream"])
def test_repeats_come_in_a_row(sources: dict[str, Source], source: str) -> None:
    batches = list(loader_of(sources[source], augment=Augment(repeats=3), batch_size=6).epoch())
    indices = torch.cat([batch.indices for batch in batches])
    images = torch.cat([batch.fields["image"] for batch in batches])
    assert len(indices) == 37
    rows = indices[:36].view(12, 3)
    assert (rows == rows[:, :1]).all()
    assert len(rows[:, 0].unique()) == 12
    for three in images[:36].reshape(12, 3, -1):
        assert len(three.unique(dim=0)) == 3


def test_balanced_sampling_needs_labels_and_any_order(sources: dict[str, Source]) -> None:
    with pytest.raises(DataError, match=r"balanced sampling needs one label per item"):
        loader_of(sources["stream"], balanced=True)
    with pytest.raises(DataError, match=r"balanced sampling needs one label per item"):
        loader_of(multi_label(), balanced=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 9, "world": 2}, r"multiple of 2.\n  Got 9 for 2 ranks.\n  Try 8."),
        ({"batch_size": 7, "augment": MIXED}, r"multiple of 2(.|\n)*mixed in pairs.\n  Try 8."),
        ({"batch_size": 6, "world": 2, "augment": MIXED}, r"multiple of 4(.|\n)*Try 8."),
        ({"batch_size": 1, "world": 4}, r"multiple of 4(.|\n)*Try 4."),
        ({"batch_size": 0}, r"multiple of 1(.|\n)*Try 1."),
    ],
)
def test_batch_sizes_that_cannot_be_divided(sources: dict[str, Source], options: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        loader_of(sources["table"], **options)


def test_the_data_must_fill_a_batch(sources: dict[str, Source]) -> None:
    with pytest.raises(
        DataError, match=r"does not fill a single batch.\n  Got 37 samples, 38 per batch.\n  Try a smaller"
    ):
        next(loader_of(sources["table"], batch_size=38, drop_last=True).batches())
    assert len(next(loader_of(sources["table"], batch_size=38).batches()).names) == 37


def multi_label() -> Table:
    table = table_of([0, 1, 2, 3])
    labels, starts = np.array([2, 0, 3, 3], dtype=np.int32), np.array([0, 1, 1, 3, 4])
    return Table(**{**vars(table), "labels": labels, "starts": starts})


def test_multi_label_targets_are_zeros_and_ones() -> None:
    batch = next(loader_of(multi_label(), shuffle=False).batches())
    assert batch.fields["label"].tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 1]]
    assert batch.fields["label"].dtype == torch.float32


def test_read_only_pixels_give_no_warning() -> None:
    """Arrays over a file's bytes, such as those of idx files, are read-only; PyTorch would warn."""
    table = table_of([0, 1, 1, 0])
    table.content.__self__.flags.writeable = False
    torch.set_warn_always(True)  # otherwise only the first warning of a process is shown
    try:
        for side in (8, 24):  # as they are, and resized
            loader = image_loader(table, Preprocess(size=(side, side)), batch_size=4, workers=0)
            assert len(next(loader.batches()).names) == 4
    finally:
        torch.set_warn_always(False)
