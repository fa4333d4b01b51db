"""The pixel cache: correct or empty, whatever happens, and never above its limit."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.small_images import write_folder, write_shards
from vitrail.data.augment import Augment
from vitrail.data.cache import GIB, PixelCache, digest
from vitrail.data.loader import Loader
from vitrail.data.prepare.image import image_loader
from vitrail.data.reader import form
from vitrail.data.source import folder
from vitrail.data.table import Source
from vitrail.data.transform import Preprocess

SPEC = Preprocess(size=(24, 24))
MIB = 2**20


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the decoded images, in order."""
    from vitrail.data.decode import decode_image

    names: list[str] = []

    def counted(content: bytes, *, name: str, **more: object) -> np.ndarray:
        names.append(name)
        return decode_image(content, name=name, **more)

    monkeypatch.setattr("vitrail.data.reader.decode_image", counted)
    monkeypatch.setattr("vitrail.data.transform.decode_image", counted)
    return names


def loader_of(source: Source, place: Path, *, limit_gb: float = 0.1, spec: Preprocess = SPEC, **options) -> Loader:
    cache = PixelCache(form(spec, options.get("augment")), limit_gb=limit_gb, folder=place, outside=source.root)
    return image_loader(
        **{"source": source, "preprocess": spec, "batch_size": 8, "workers": 0, "cache": cache, **options}
    )


def noise(number: int, side: int = 32) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)


def key(number: int) -> bytes:
    return digest(str(number).encode())


def filled(place: Path, num: int, *, name: str = "a form", limit: int = 64 * MIB, side: int = 32) -> PixelCache:
    cache = PixelCache(name, limit_gb=limit / GIB, folder=place)
    for number in range(num):
        cache.put(key(number), f"stamp {number}", noise(number, side))
    cache.flush()
    return cache


@pytest.mark.parametrize("augment", [None, Augment(), Augment(crop="padded")], ids=["plain", "resized", "padded"])
@pytest.mark.parametrize("write", [write_folder, write_shards])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_second_epoch_decodes_nothing(
    write, augment: Augment | None, workers: int, decoded: list[str], tmp_path: Path
) -> None:
    loader = loader_of(write(tmp_path / "data"), tmp_path / "cache", augment=augment, workers=workers, shuffle=True)
    list(loader.epoch(0))
    assert len(decoded) == len(set(decoded)) == 37
    list(loader.epoch(1))
    assert len(decoded) == 37
    loader.prepare.cache.close()
    again = loader_of(loader.source, tmp_path / "cache", augment=augment)
    list(again.epoch(5))
    assert len(decoded) == 37


def test_pending_pixels_are_found_in_the_next_epoch(decoded: list[str], tmp_path: Path) -> None:
    """Training runs all epochs without a break; pixels that are not written yet must be found as well."""
    loader = loader_of(write_folder(tmp_path / "data"), tmp_path / "cache", shuffle=True)
    list(loader.batches(0, 3 * loader.steps_per_epoch))
    assert len(decoded) == 37


def test_a_known_file_is_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(write_folder(tmp_path / "data"), tmp_path / "cache")
    first = torch.cat([batch.fields["image"] for batch in loader.epoch()])
    monkeypatch.setattr("vitrail.data.source.folder.read_file", None)
    assert torch.equal(torch.cat([batch.fields["image"] for batch in loader.epoch()]), first)


def test_an_image_is_identified_by_its_content(decoded: list[str], tmp_path: Path) -> None:
    root = tmp_path / "data"
    for number in range(4):
        (root / str(number)).mkdir(parents=True)
        Image.fromarray(noise(number)).save(root / str(number) / "0.bmp")
    loader = loader_of(folder.open_source(str(root)), tmp_path / "cache")
    list(loader.epoch())
    loader.prepare.cache.close()
    decoded.clear()

    (root / "0" / "0.bmp").rename(root / "0" / "renamed.bmp")
    shutil.copy(root / "1" / "0.bmp", root / "3" / "copied.bmp")
    changed = root / "2" / "0.bmp"
    state = changed.stat()
    time.sleep(0.05)  # file systems keep time in steps of some milliseconds
    Image.fromarray(noise(9)).save(changed)
    os.utime(changed, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (changed.stat().st_size, changed.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)

    table = folder.open_source(str(root))
    batch = next(loader_of(table, tmp_path / "cache").epoch())
    assert decoded == ["2/0.bmp"]
    assert torch.equal(batch.fields["image"], torch.stack([SPEC(noise(number)) for number in (0, 1, 9, 3, 1)]))


@pytest.mark.parametrize(
    ("other", "hits"),
    [
        ({"mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 2.0]}, True),
        ({"size": [24, 25]}, False),
        ({"kernel": "bilinear"}, False),
        ({"crop": 0.9}, False),
        ({"resize": "squash"}, False),
        ({"background": [0, 0, 0]}, False),
        ({"mode": "grey", "mean": [0.5], "std": [0.5]}, False),
    ],
    ids=str,
)
def test_a_cache_belongs_to_its_preprocessing(other: dict, hits: bool, decoded: list[str], tmp_path: Path) -> None:
    table = write_folder(tmp_path / "data", num=8)
    first = loader_of(table, tmp_path / "cache")
    list(first.epoch())
    first.prepare.cache.close()
    spec = SPEC.override(other)
    batch = next(loader_of(table, tmp_path / "cache", spec=spec).epoch())
    assert len(decoded) == (8 if hits else 16)
    plain = next(image_loader(table, spec, batch_size=8, workers=0).epoch())
    assert torch.equal(batch.fields["image"], plain.fields["image"])


def test_a_cache_belongs_to_its_augmentation() -> None:
    forms = [None, Augment(), Augment(spare=1.5), Augment(crop="padded")]
    assert len({form(SPEC, augment) for augment in forms}) == 4
    same = [Augment(), Augment(crop="random"), Augment(flip_rate=1.0, policy="rand", mixup=1.0, scale=(0.5, 1.0))]
    assert len({form(SPEC, augment) for augment in same}) == 1


def test_the_limit_holds(tmp_path: Path) -> None:
    limit = 2 * MIB
    cache = filled(tmp_path, 0, limit=limit)
    for number in range(2000):  # 6 MB of pixels
        cache.put(key(number), "", noise(number))
        if number % 50 == 0:
            cache.flush()
            assert (cache.path / "data.mdb").stat().st_size <= limit
    found = [number for number in range(2000) if cache.get(key(number)) is not None]
    assert found == list(range(len(found)))
    assert 200 < len(found) < 700
    assert all(np.array_equal(cache.get(key(number)), noise(number)) for number in found)


def test_a_full_cache_changes_no_pixels(decoded: list[str], caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "vitrail")
    spec, table = Preprocess(size=(160, 160)), write_folder(tmp_path / "data")  # 2.8 MB of pixels
    loader = loader_of(table, tmp_path / "cache", spec=spec, limit_gb=1 / 1024)
    plain = torch.cat([batch.fields["image"] for batch in image_loader(table, spec, batch_size=8).epoch()])
    for _ in range(2):
        assert torch.equal(torch.cat([batch.fields["image"] for batch in loader.epoch()]), plain)
    assert len(decoded) == 3 * 37
    assert [record.message for record in caplog.records].count(
        "the pixel cache is full: the remaining images are decoded every time"
    ) == 1
    assert (loader.prepare.cache.path / "data.mdb").stat().st_size <= MIB


def test_the_limit_is_for_all_forms_together(tmp_path: Path) -> None:
    """As in training, where the images of both splits are cached at once, each in its form."""
    limit = 4 * MIB
    caches = [filled(tmp_path, 0, name=name, limit=limit) for name in ("train", "val")]
    for number in range(2000):
        for cache in caches:
            cache.put(key(number), "", noise(number))
            if number % 50 == 0:
                cache.flush()
    assert sum((cache.path / "data.mdb").stat().st_size for cache in caches) <= limit


def test_a_lower_limit_holds_for_an_old_cache(tmp_path: Path) -> None:
    filled(tmp_path, 2000).close()
    cache = filled(tmp_path, 10, limit=2 * MIB)
    assert (cache.path / "data.mdb").stat().st_size <= 2 * MIB


def test_the_oldest_forms_are_deleted(tmp_path: Path) -> None:
    old = {name: filled(tmp_path, 700, name=name) for name in ("second", "first", "third")}  # 3 MB each
    for age, name in enumerate(("third", "second", "first")):
        old[name].close()
        os.utime(old[name].path, (1e9 - age, 1e9 - age))
    new = filled(tmp_path, 1, name="new", limit=16 * MIB)  # the others may take half of it
    assert [old[name].path.exists() for name in ("first", "second", "third")] == [False, True, True]
    assert new.get(key(0)) is not None
    again = filled(tmp_path, 0, name="second")
    assert np.array_equal(again.get(key(699)), noise(699))


def test_one_form_opened_twice(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Two loaders of one process with the same form share what they have."""
    one = filled(tmp_path, 5)
    two = filled(tmp_path, 0)
    assert np.array_equal(two.get(key(3)), noise(3))
    two.put(key(7), "", noise(7))
    two.close()
    assert np.array_equal(one.get(key(7)), noise(7))
    assert not caplog.records
