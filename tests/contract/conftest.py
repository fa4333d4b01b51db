"""Shared by the contracts of data: bad data is refused, if need be in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.reading import Child, Refuse, fingerprint, read
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
