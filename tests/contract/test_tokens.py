"""Subsets of tokens know which cells of the grid they hold, and whoever needs the whole grid refuses them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import fill
from tests.contract.small_models import small
from vitrail import create_model
from vitrail.errors import ShapeError
from vitrail.inspection import trace
from vitrail.inspection.distance import mean_distance
from vitrail.nn.head import mean_of_cells
from vitrail.nn.merge import MergingBlocks
from vitrail.tokens import Layout, Tokens


def random_tokens(layout: Layout, batch: int = 2, *, with_mask: bool = False) -> Tokens:
    num = layout.num_tokens
    return Tokens(torch.randn(batch, num, 6), layout, torch.rand(batch, num) < 0.7 if with_mask else None)


def random_places(batch: int, num_cells: int, num: int) -> torch.Tensor:
    return torch.stack([torch.randperm(num_cells)[:num] for _ in range(batch)])


@settings(deadline=None)
@given(
    grid=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    prefix=st.integers(0, 3),
    with_mask=st.booleans(),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_kept_tokens_know_their_places(
    grid: tuple[int, ...], prefix: int, with_mask: bool, seed: int, data: st.DataObject
) -> None:
    torch.manual_seed(seed)
    tokens = random_tokens(Layout(grid, prefix), with_mask=with_mask)
    num = data.draw(st.integers(0, tokens.layout.num_cells))
    places = random_places(2, tokens.layout.num_cells, num)
    kept = tokens.keep(places)
    assert kept.layout == tokens.layout
    assert torch.equal(kept.x[:, :prefix], tokens.x[:, :prefix])
    for sample in range(2):
        assert torch.equal(kept.cells[sample], tokens.cells[sample, places[sample]])
        if with_mask:
            assert torch.equal(kept.mask[sample, :prefix], tokens.mask[sample, :prefix])
            assert torch.equal(kept.mask[sample, prefix:], tokens.mask[sample, prefix:][places[sample]])
    assert torch.equal(kept.places, places)
    assert torch.equal(kept.with_x(kept.x + 1).places, places)
    # A subset of a subset still names cells of the grid.
    fewer = random_places(2, num, data.draw(st.integers(0, num)))
    twice = kept.keep(fewer)
    direct = tokens.keep(places.gather(1, fewer))
    assert torch.equal(twice.places, direct.places)
    assert torch.equal(twice.x, direct.x)
    assert twice.mask is None or torch.equal(twice.mask, direct.mask)


@pytest.mark.parametrize("kind", ["class token", "mean pooling", "distilled", "registers", "attention pooling"])
def test_encoding_a_subset_equals_hiding_the_others(kind: str) -> None:
    """Exact for full attention, which treats a hidden token as if it were not there."""
    model = small(kind, image_size=64)
    tokens = model.tokenize(torch.randn(2, 3, 64, 64))
    prefix, places = tokens.layout.prefix, random_places(2, 16, 6)
    mask = torch.ones(2, tokens.layout.num_tokens, dtype=torch.bool)
    mask[:, prefix:] = False
    mask[:, prefix:].scatter_(1, places, True)
    with torch.no_grad():
        subset = model.encode(tokens.keep(places))
        masked = model.encode(tokens._replace(mask=mask))
        assert torch.equal(subset.places, places)
        assert subset.x.shape[1] == prefix + 6
        assert torch.allclose(subset.x, masked.keep(places).x, atol=1e-5)
        assert torch.allclose(model.classify(subset), model.classify(masked), atol=1e-5)
        assert not torch.allclose(model.classify(subset), model.classify(model.encode(tokens)), atol=1e-3)


def test_the_mean_of_a_subset_is_that_of_its_cells() -> None:
    tokens = random_tokens(Layout((3, 4), 2)).keep(random_places(2, 12, 5))
    assert torch.allclose(mean_of_cells(tokens), tokens.cells.mean(dim=1))
    model = small("mean pooling")
    weights = trace.pooling_weights(model, tokens)
    assert torch.allclose(weights.sum(dim=1), torch.ones(2))


def test_gradients_reach_kept_cells_only() -> None:
    tokens = random_tokens(Layout((8,), 1))
    x = tokens.x.clone().requires_grad_()
    places = random_places(2, 8, 3)
    tokens.with_x(x).keep(places).x.sum().backward()
    assert torch.equal(x.grad[:, 0], torch.ones(2, 6))
    assert torch.equal(x.grad[:, 1:, 0].sum(dim=1), torch.full((2,), 3.0))


@pytest.mark.parametrize(
    "indices",
    [torch.tensor([0, 1]), torch.tensor([[0, 1]]), torch.tensor([[0], [1]], dtype=torch.int32)],
    ids=["one-dimension", "too-few-samples", "int32"],
)
def test_indices_of_a_wrong_shape(indices: torch.Tensor) -> None:
    """A single row would silently drop every sample but the first."""
    with pytest.raises(ShapeError, match=r"one row of cell indices per sample(.|\n)*for 2 samples(.|\n)*shape \[2, "):
        random_tokens(Layout((2, 2))).keep(indices)


def merging(tokens: Tokens) -> Any:
    model = fill(create_model("vit_mu_patch16_224", width=6, heads=1), 0.2)
    return MergingBlocks(model.blocks, 1)(tokens)


def convolving(tokens: Tokens) -> Any:
    return create_model("resnetv2_50x1_bit", layers=(1, 1, 1, 1)).encode(tokens)


@pytest.mark.parametrize(("reader", "name"), [(merging, "token merging"), (convolving, "a convolutional network")])
def test_readers_of_the_whole_grid_refuse_a_subset(reader: Any, name: str) -> None:
    subset = random_tokens(Layout((3, 4))).keep(random_places(2, 12, 5))
    message = rf"{name} needs every cell of the grid.(.|\n)*Got 5 of 12 cells(.|\n)*before keep"
    with pytest.raises(ShapeError, match=message):
        reader(subset)


def test_maps_and_distances_refuse_a_subset() -> None:
    layout = Layout((3, 4), 1)
    with pytest.raises(ShapeError, match=r"every cell of the grid(.|\n)*6 values for 13 tokens"):
        trace.on_grid(torch.rand(2, 6), layout)
    with pytest.raises(ShapeError, match=r"every cell of the grid(.|\n)*6 tokens, not 13"):
        mean_distance(torch.rand(2, 1, 6, 6), layout, (16, 16))
