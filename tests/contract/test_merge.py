"""Token merging: similar cells become one token that counts as many, and the grid is restored at the end."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import fill
from vitrail import create_model
from vitrail.errors import SpecError
from vitrail.nn.merge import MergingBlocks, merge
from vitrail.tokens import Tokens


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("num", [1, 3, 50])
def test_merging_identical_cells_changes_nothing(pool: str, num: int) -> None:
    more = {"pool": pool, "position": "none", "num_classes": 5, "registers": 2, "depth": 8}
    model = fill(create_model("vit_mu_patch16_112", **more), 0.2).eval()
    image = torch.randn(2, 3, 16, 16).tile(1, 1, 7, 7)  # 49 cells, all identical
    with torch.inference_mode():
        expected = model(image)
        model.blocks = MergingBlocks(model.blocks, num)
        assert torch.allclose(model(image), expected, atol=1e-5)
        assert not torch.allclose(model(torch.randn(2, 3, 112, 112)), expected, atol=1e-3)


@pytest.mark.parametrize("cells", [8, 9])
def test_the_closest_pairs_become_their_mean(cells: int) -> None:
    keys = torch.eye(cells + 1)[None]
    keys[0, 3] = keys[0, 6]  # cells 2 and 5: one even, one odd
    x, count = torch.randn(1, cells + 1, 4), torch.ones(1, cells + 1, 1)
    count[0, 3] = 3.0
    merged, counts, places = merge(x, count, keys, 1, 1)
    assert merged.shape == (1, cells, 4)
    assert torch.equal(merged[0, 0], x[0, 0])
    at = places[0, 2].item()
    assert places[0, 5] == at
    assert torch.allclose(merged[0, 1 + at], (3 * x[0, 3] + x[0, 6]) / 4)
    assert counts[0, 1 + at] == 4
    assert counts.sum() == count.sum()
    for cell in set(range(cells)) - {2, 5}:  # all others are at their new place
        assert torch.equal(merged[0, 1 + places[0, cell]], x[0, 1 + cell])


def test_unmerged_cells_keep_their_order() -> None:
    """The next block pairs even with odd cells again, so neighbours should stay neighbours."""
    keys, count = torch.randn(1, 12, 4), torch.ones(1, 12, 1)
    _, _, places = merge(torch.randn(1, 12, 4), count, keys, 0, 2)
    unmerged = [place for place in places[0, ::2].tolist() if place < 4]
    assert unmerged == [0, 1, 2, 3]


def test_the_grid_is_restored() -> None:
    model = fill(create_model("vit_mu_patch16_112"), 0.2).eval()
    tokens = model.tokenize(torch.randn(2, 3, 112, 112))
    restored = MergingBlocks(model.blocks, 10)(tokens)
    assert isinstance(restored, Tokens)
    assert restored.x.shape == tokens.x.shape
    assert len(restored.cells[0].unique(dim=0)) == 49 - 2 * 10


def test_merging_no_pairs_is_rejected() -> None:
    with pytest.raises(SpecError, match="merging needs at least one pair"):
        MergingBlocks([], 0)
