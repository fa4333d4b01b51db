"""Unreadable images while others are loaded: named or skipped, and no thread stays behind."""

from __future__ import annotations

import threading
from itertools import chain
from pathlib import Path

import pytest
import torch

from tests.contract.small_images import write_folder, write_shards
from vitrail.batch import Batch
from vitrail.data.augment import Augment
from vitrail.data.cache import PixelCache
from vitrail.data.loader import Loader
from vitrail.data.prepare.image import image_loader
from vitrail.data.reader import form
from vitrail.data.table import Source
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError

SPEC = Preprocess(size=(24, 24))
WORKERS = [0, 1, 2, 4]


def loader_of(source: Source, **options) -> Loader:
    return image_loader(**{"source": source, "preprocess": SPEC, "batch_size": 8, "workers": 2, **options})


def names_of(batches: list[Batch]) -> list[str]:
    return list(chain.from_iterable(batch.names for batch in batches))


@pytest.fixture(params=["table", "stream"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Source, str]:
    """37 images, of which number 20 in order is not an image, and its name."""
    if request.param == "stream":
        return write_shards(tmp_path, broken=22), f"{tmp_path.name}/001.tar/022.jpg"
    table = write_folder(tmp_path)
    (tmp_path / table.names[20]).write_bytes(b"nothing")
    return table, table.names[20]


@pytest.mark.parametrize("workers", WORKERS)
def test_the_file_is_named(broken: tuple[Source, str], workers: int) -> None:
    source, name = broken
    before = set(threading.enumerate())
    good: list[Batch] = []
    with pytest.raises(DataError, match=rf"{name} is not an image that Vitrail can read"):
        good.extend(loader_of(source, workers=workers).epoch())
    assert set(threading.enumerate()) == before
    assert names_of(good) == [item.name for item in source][:16]


@pytest.mark.parametrize("augment", [None, Augment()], ids=["plain", "augmented"])
@pytest.mark.parametrize("workers", WORKERS)
def test_only_the_broken_image_is_skipped(broken: tuple[Source, str], workers: int, augment: Augment | None) -> None:
    source, name = broken
    loader = loader_of(source, workers=workers, policy="skip", augment=augment)
    batches = list(loader.epoch())
    assert names_of(batches) == [item.name for item in source if item.name != name]
    assert [len(batch.fields["image"]) for batch in batches] == [8, 8, 7, 8, 5]
    assert [(one.path, one.kind) for one in loader.skipped] == [(name, "skipped")]
    assert "not an image that Vitrail can read" in loader.skipped[0].detail
    assert batches[2].indices.tolist() == [16, 17, 18, 19, 21, 22, 23]
    if augment is None:
        for item, image in zip(list(source)[21:24], batches[2].fields["image"][4:], strict=True):
            pixels = SPEC.resize_and_crop(SPEC.decode(item.content()))
            assert torch.equal(image, SPEC.normalise(pixels[None])[0])


@pytest.mark.parametrize("augment", [None, Augment(mixup=0.8, cutmix=1.0)], ids=["plain", "mixed"])
def test_ranks_agree_on_the_remaining_images(broken: tuple[Source, str], augment: Augment | None) -> None:
    """Number 20 is the first of its pair: what its neighbour is mixed with must not depend on the ranks."""
    source, _ = broken
    whole = list(loader_of(source, policy="skip", augment=augment).epoch())
    parts = [list(loader_of(source, policy="skip", augment=augment, rank=rank, world=4).epoch()) for rank in range(4)]
    for batch, *ranks in zip(whole, *parts, strict=True):
        assert batch.names == tuple(chain.from_iterable(part.names for part in ranks))
        assert torch.equal(batch.fields["label"], torch.cat([part.fields["label"] for part in ranks]))
        assert torch.equal(batch.fields["image"], torch.cat([part.fields["image"] for part in ranks]))


@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize("workers", WORKERS)
def test_a_file_that_vanishes(workers: int, policy: str, tmp_path: Path) -> None:
    table = write_folder(tmp_path / "data")
    before = set(threading.enumerate())
    loader = loader_of(table, workers=workers, policy=policy, batch_size=4)
    batches = loader.epoch(1)
    shown = [next(batches)]
    (tmp_path / "data" / table.names[-1]).unlink()
    if policy == "error":
        with pytest.raises(DataError, match=rf"{table.names[-1]} does not exist(.|\n)*Try leaving it out"):
            shown.extend(batches)
        assert names_of(shown) == table.names[:36]
    else:
        shown.extend(batches)
        assert names_of(shown) == table.names[:-1]
        assert [one.path for one in loader.skipped] == [table.names[-1]]
    assert set(threading.enumerate()) == before


def test_a_cached_file_may_vanish(tmp_path: Path) -> None:
    """Within one run the cache replaces the file; the next run checks it again."""
    table = write_folder(tmp_path / "data")
    cache = PixelCache(form(SPEC, None), limit_gb=0.01, folder=tmp_path / "cache")
    loader = loader_of(table, cache=cache)
    seen = list(loader.epoch())
    (tmp_path / "data" / table.names[-1]).unlink()
    again = list(loader.epoch())
    assert names_of(again) == table.names
    assert torch.equal(again[-1].fields["image"], seen[-1].fields["image"])
    with pytest.raises(DataError, match=rf"{table.names[-1]} does not exist"):
        list(loader_of(table, cache=cache).epoch())


def test_a_file_without_read_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write_folder(tmp_path)

    def refused(path: object, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("vitrail.data.decode.os.open", refused)
    with pytest.raises(
        DataError, match=r"a/000.png cannot be read.\n  Got Permission denied.\n  Try fixing its permissions"
    ):
        next(loader_of(table, workers=0).epoch())


def test_the_first_of_two_broken_images_is_named(tmp_path: Path) -> None:
    """Whichever thread fails first, the error names the first image in order."""
    table = write_folder(tmp_path)
    for row in (17, 23):
        (tmp_path / table.names[row]).write_bytes(b"")
    for workers in WORKERS:
        with pytest.raises(DataError, match=table.names[17]):
            list(loader_of(table, workers=workers).epoch())


@pytest.mark.parametrize("workers", [1, 4])
def test_threads_end_with_the_loader(workers: int, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    table = write_folder(tmp_path)
    batches = loader_of(table, workers=workers).batches()
    next(batches)
    assert 1 <= len(set(threading.enumerate()) - before) <= workers
    batches.close()
    assert set(threading.enumerate()) == before
    assert len(list(loader_of(table, workers=workers).epoch())) == 5
    assert set(threading.enumerate()) == before


def test_a_shard_that_ends_early(tmp_path: Path) -> None:
    """Truncated after it was counted: all batches before the cut are shown, for any number of workers."""
    source = write_shards(tmp_path, num_shards=2)
    shard = tmp_path / "001.tar"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    before = set(threading.enumerate())
    counts = []
    for workers in WORKERS:
        good: list[Batch] = []
        with pytest.raises(DataError, match=r"001.tar is not a readable shard"):
            good.extend(loader_of(source, workers=workers, batch_size=4).epoch())
        assert set(threading.enumerate()) == before
        counts.append(len(good))
    assert counts == counts[:1] * len(WORKERS)
    assert counts[0] > 4
