"""The entries of the registry folders that have no contract test of their own: stems, objectives and workloads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail import plug
from vitrail.contract import Objective
from vitrail.spec import Spec


@pytest.mark.parametrize("name", plug.entries("vitrail.stem"))
def test_stems(name: str) -> None:
    """A stem cuts an image into cells of the size that it states, and counts what that costs."""
    entry = plug.load("vitrail.stem", name)
    assert issubclass(entry.Spec, Spec)
    spec = entry.Spec()
    assert spec.name == name
    size = tuple(2 * side for side in spec.cell)
    stem = entry.Stem(spec, channels=3, width=8)
    tokens = stem(torch.zeros(1, 3, *size))
    assert tokens.layout.grid == (2, 2)
    assert tokens.x.shape == (1, 4, 8)
    assert stem.flops(size) > 0


@pytest.mark.parametrize("name", plug.entries("vitrail.objective"))
def test_objectives(name: str) -> None:
    entry = plug.load("vitrail.objective", name)
    own = [value for value in vars(entry).values() if isinstance(value, type) and value.__module__ == entry.__name__]
    assert any(issubclass(value, Objective) and value.forward is not nn.Module.forward for value in own)


@pytest.mark.parametrize("name", plug.entries("vitrail.benchmark.workload"))
def test_workloads(name: str) -> None:
    assert callable(plug.load("vitrail.benchmark.workload", name).run)
