"""Shared by all tests: where the real data is, one thread a worker, one seed a test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.forge import Forge
from vitrail import machine

ROOT = Path(__file__).parent.parent
machine.avoid_broken_tiles()  # before peers use oneDNN; processes that tests start inherit it
DATA = Path(os.environ.get("VITRAIL_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data and weights; tests that need it are skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"no real data: set VITRAIL_DATA or put it in {DATA}")
    return DATA


@pytest.fixture(scope="session")
def deit_tiny(data_dir: Path) -> Path:
    """The real DeiT-Ti weights."""
    return data_dir / "weights" / "deit_tiny_patch16_224" / "model.safetensors"


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    """A process whose forks run commands, and may be killed."""
    one = Forge()
    yield one
    one.stop()


def fill(model: torch.nn.Module, std: float = 0.05) -> torch.nn.Module:
    """Random numbers in every parameter, heads and biases included, so that nothing hides behind a zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std
            is_scale = parameter.ndim == 1 and name.endswith(("weight", "gamma"))
            parameter.copy_(noise + 1 if is_scale else noise)
    return model


def copy_unsummed(source: Path, target: Path) -> Path:
    """Copy a run or an export without the list of its sums, so that changed files reach the checks behind it."""
    return shutil.copytree(source, target, ignore=shutil.ignore_patterns("SHA256SUMS"))
