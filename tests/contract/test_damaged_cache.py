"""What can happen to a cache: killed processes, full disks, damaged files, folders it must not touch."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import numpy as np
import pytest
import torch

from tests.contract.small_images import write_folder
from vitrail.data.cache import PixelCache, digest
from vitrail.data.prepare.image import image_loader
from vitrail.data.reader import form
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError

SPEC = Preprocess(size=(24, 24))
FILL = """
import sys
from pathlib import Path
import numpy as np
from vitrail.data import cache

cache.COMMIT_BYTES = 50_000
pixel_cache = cache.PixelCache("a form", limit_gb=0.05, folder=Path(sys.argv[1]))
for number in range(int(sys.argv[2]), 10**6):
    pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    pixel_cache.put(cache.digest(str(number).encode()), f"stamp {number}", pixels)
    print(number, flush=True)
"""
READ = """
import sys
from pathlib import Path
from vitrail.data import cache

pixel_cache = cache.PixelCache("a form", limit_gb=0.05, folder=Path(sys.argv[1]))
found = [pixel_cache.get(cache.digest(str(number).encode())) for number in range(400)]
pixel_cache.close()
"""


def noise(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def key(number: int) -> bytes:
    return digest(str(number).encode())


def open_cache(place: Path) -> PixelCache:
    return PixelCache("a form", limit_gb=0.05, folder=place)


def filled(place: Path, num: int = 400) -> PixelCache:
    cache = open_cache(place)
    for number in range(num):
        cache.put(key(number), f"stamp {number}", noise(number))
    cache.flush()
    return cache


def test_killed_while_it_is_filled(tmp_path: Path) -> None:
    """At any moment: everything written is there, everything there is correct, and filling can continue."""
    moments, first = random.Random(0), 0
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", FILL, tmp_path, str(first)], stdout=subprocess.PIPE) as child:
            last = first
            for _ in range(moments.randrange(20, 300)):
                last = int(child.stdout.readline())
            time.sleep(moments.uniform(0, 0.02))
            child.kill()
            assert child.wait() == -9
        cache = open_cache(tmp_path)
        for number in range(last + 2000):
            pixels = cache.get(key(number))
            if number <= last - 17:  # 17 images are written together
                assert pixels is not None, number
            if pixels is not None:
                assert np.array_equal(pixels, noise(number))
                assert cache.find_key(f"stamp {number}") == key(number)
        cache.close()
        first = max(0, last - 17)  # those not yet written are added again


def test_two_processes_share_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", FILL, tmp_path, "1000"], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        cache = filled(tmp_path, 200)
        while int(child.stdout.readline()) < 1100:
            pass
        child.kill()
    for number in (*range(200), *range(1000, 1080)):
        assert np.array_equal(cache.get(key(number)), noise(number))


DAMAGES = {
    "random bytes": lambda data: random.Random(0).randbytes(len(data)),
    "random head": lambda data: random.Random(0).randbytes(8192) + data[8192:],
    "nothing": lambda data: b"",
    "text": lambda data: b"hello",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_rebuilt(damage: str, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    cache = filled(tmp_path)
    cache.close()
    file = cache.path / "data.mdb"
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    cache = open_cache(tmp_path)
    assert cache.get(key(0)) is None
    assert cache.find_key("stamp 0") is None
    assert (damage == "nothing") != ("damaged and is rebuilt" in caplog.text)
    cache.close()
    cache = filled(tmp_path, 3)
    assert np.array_equal(cache.get(key(2)), noise(2))


@pytest.mark.parametrize("size", [5000, 600_000])
def test_a_truncated_file_kills_no_process(size: int, tmp_path: Path) -> None:
    cache = filled(tmp_path)
    cache.close()
    file = cache.path / "data.mdb"
    assert file.stat().st_size > 1_200_000
    file.write_bytes(file.read_bytes()[:size])
    run = subprocess.run([sys.executable, "-c", READ, tmp_path], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr.count("Traceback")) == (0, 0)


def test_damaged_pages_are_ignored(tmp_path: Path) -> None:
    """The file opens, but what its header points to is gone: images are decoded as if there were no cache."""
    table = write_folder(tmp_path / "data")
    plain = torch.cat([batch.fields["image"] for batch in image_loader(table, SPEC, batch_size=8).epoch()])
    for damaged in (False, True):
        cache = PixelCache(form(SPEC, None), limit_gb=0.05, folder=tmp_path / "cache")
        loader = image_loader(table, SPEC, batch_size=8, cache=cache)
        assert torch.equal(torch.cat([batch.fields["image"] for batch in loader.epoch()]), plain)
        cache.close()
        file = cache.path / "data.mdb"
        if not damaged:
            file.write_bytes(file.read_bytes()[:8192].ljust(file.stat().st_size, b"\0"))


def test_changed_pixels_are_not_used(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    cache.close()
    file = cache.path / "data.mdb"
    data = file.read_bytes()
    place = data.index(noise(7).tobytes()) + 1000
    file.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
    pixels = open_cache(tmp_path).get(key(7))
    assert pixels is None or np.array_equal(pixels, noise(7))


class FullDisk:
    """An environment that can be read and not written."""

    def __init__(self, environment: lmdb.Environment, error: Exception) -> None:
        self.environment, self.error, self.tries = environment, error, 0

    def begin(self, *, write: bool = False, **more: object) -> lmdb.Transaction:
        if write:
            self.tries += 1
            raise self.error
        return self.environment.begin(**more)


@pytest.mark.parametrize("error", [lmdb.DiskError("No space left on device"), OSError(28, "No space left on device")])
def test_a_full_disk_only_stops_writing(error: Exception, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    table = write_folder(tmp_path / "data")
    cache = PixelCache(form(SPEC, None), limit_gb=0.05, folder=tmp_path / "cache")
    disk = cache.environment = FullDisk(cache.environment, error)
    loader = image_loader(table, SPEC, batch_size=8, cache=cache)
    plain = torch.cat([batch.fields["image"] for batch in image_loader(table, SPEC, batch_size=8).epoch()])
    for epoch in range(3):
        assert torch.equal(torch.cat([batch.fields["image"] for batch in loader.epoch(epoch)]), plain)
    assert disk.tries == 1
    assert caplog.text.count("the pixel cache cannot be written") == 1
    assert "No space left" in caplog.text


def test_written_pixels_survive_a_full_disk(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A real error of the system, at 1 MB per file."""
    cache = filled(tmp_path, 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        for number in range(100, 1000):
            cache.put(key(number), "", noise(number))
        cache.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the pixel cache cannot be written" in caplog.text
    cache.close()
    cache = open_cache(tmp_path)
    for number in range(1000):
        pixels = cache.get(key(number))
        assert pixels is None if number >= 100 else np.array_equal(pixels, noise(number))


def test_never_inside_the_data(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_folder(root, num=3)
    (tmp_path / "link").symlink_to(root)
    for place in (root, root / "deep" / "down", tmp_path / "link" / "cache"):
        with pytest.raises(
            DataError, match=r"must not be inside the data folder(.|\n)*Try setting VITRAIL_CACHE to another"
        ):
            PixelCache("a form", limit_gb=0.05, folder=place, outside=root)
    assert sorted(path.name for path in root.iterdir()) == ["a", "b", "c"]
    PixelCache("a form", limit_gb=0.05, folder=tmp_path / "database", outside=root)


def test_the_cache_folder_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "elsewhere"))
    cache = PixelCache("a form", limit_gb=0.05)
    assert cache.path.is_relative_to(tmp_path / "elsewhere")
