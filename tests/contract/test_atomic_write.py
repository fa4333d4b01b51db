"""What goes wrong while a file is written is reported as what it is; new files get the usual permissions."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vitrail.errors import RunError, WeightsError
from vitrail.files import atomic_write, get_umask, write_text
from vitrail.weights.tensor_files import write_tensors


@contextmanager
def small_disk(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond this size: to a writer that is a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz"])
def test_full_disk(tmp_path: Path, suffix: str) -> None:
    """safetensors and torch.save have their own errors for it."""
    with small_disk(2000), pytest.raises(WeightsError, match="cannot be written") as caught:
        write_tensors({"a": torch.zeros(10_000)}, tmp_path / f"weights{suffix}")
    assert caught.value.hint == "freeing disk space, or another folder."
    assert list(tmp_path.iterdir()) == []


def test_other_errors_are_not_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="our own mistake"), atomic_write(tmp_path / "a", RunError):
        raise RuntimeError("our own mistake")
    shared = torch.zeros(3)
    with pytest.raises(RuntimeError, match="share memory"), atomic_write(tmp_path / "b", RunError) as part:
        save_file({"a": shared, "b": shared}, part)
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_torch_are_not_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError, match="CUDA"):
        write_tensors({"a": torch.zeros(3)}, tmp_path / "weights.pth")


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077, 0o002])
def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    """The umask belongs to all threads of the process, so reading it must not change it."""
    before = os.umask(umask)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda _: pytest.fail("the umask was changed"))
            write_text("text", tmp_path / "text", RunError)
            write_tensors({"a": torch.zeros(3)}, tmp_path / "w.safetensors")
            assert get_umask(tmp_path) == umask
    finally:
        os.umask(before)
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["text", "w.safetensors"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~umask}
