"""Shared by the contracts: bad data is refused, if need be in a process of its own, and others are there to kill."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.disturbed import Bench
from tests.contract.reading import Child, Refuse, fingerprint, read
from tests.forge import Forge
from vitrail.errors import DataError


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Data must be refused with one error, and stay as it was."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))

    def check(word: str | Path, match: str) -> DataError:
        before = fingerprint(tmp_path)
        with pytest.raises(DataError, match=match) as caught:
            read(word)
        assert fingerprint(tmp_path) == before
        assert caught.value.__context__ is None or caught.value.__suppress_context__
        return caught.value

    return check


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    one = Child()
    yield one
    one.stop()


@pytest.fixture(scope="session")
def swift_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory, where bringing files to the disk takes no time; on a disk where there is none."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(dir=memory)) if memory.is_dir() else tmp_path_factory.mktemp("swift")
    yield place
    shutil.rmtree(place)


@pytest.fixture
def swift_path(swift_folder: Path) -> Path:
    """An empty folder in it."""
    return Path(tempfile.mkdtemp(dir=swift_folder))


@pytest.fixture(scope="session")
def bench(swift_folder: Path, forge: Forge) -> Bench:
    """Where runs are disturbed."""
    return Bench(Path(tempfile.mkdtemp(dir=swift_folder)), forge)
