"""Token merging: alike cells become one, are counted as many, and find their way back."""

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
def test_merging_what_is_the_same_changes_nothing(pool: str, num: int) -> None:
    more = {"pool": pool, "position": "none", "num_classes": 5, "registers": 2, "depth": 8}
    model = fill(create_model("vit_mu_patch16_112", **more), 0.2).eval()
    picture = torch.randn(2, 3, 16, 16).tile(1, 1, 7, 7)  # 49 cells, all alike
    with torch.inference_mode():
        wanted = model(picture)
        model.blocks = MergingBlocks(model.blocks, num)
        assert torch.allclose(model(picture), wanted, atol=1e-5)
        assert not torch.allclose(model(torch.randn(2, 3, 112, 112)), wanted, atol=1e-3)


@pytest.mark.parametrize("cells", [8, 9])
def test_the_closest_pairs_become_their_mean(cells: int) -> None:
    keys = torch.eye(cells + 1)[None]
    keys[0, 3] = keys[0, 6]  # the cells 2 and 5, one of each side
    x, count = torch.randn(1, cells + 1, 4), torch.ones(1, cells + 1, 1)
    count[0, 3] = 3.0
    merged, counts, moved = merge(x, count, keys, 1, 1)
    assert merged.shape == (1, cells, 4)
    assert torch.equal(merged[0, 0], x[0, 0])
    at = moved[0, 2].item()
    assert moved[0, 5] == at
    assert torch.allclose(merged[0, 1 + at], (3 * x[0, 3] + x[0, 6]) / 4)
    assert counts[0, 1 + at] == 4
    assert counts.sum() == count.sum()
    for cell in set(range(cells)) - {2, 5}:  # all others are where they are said to be
        assert torch.equal(merged[0, 1 + moved[0, cell]], x[0, 1 + cell])


def test_what_stays_keeps_its_order() -> None:
    """Every second cell looks for a partner in the next block too, so neighbours should stay neighbours."""
    keys, count = torch.randn(1, 12, 4), torch.ones(1, 12, 1)
    _, _, moved = merge(torch.randn(1, 12, 4), count, keys, 0, 2)
    stay = [place for place in moved[0, ::2].tolist() if place < 4]
    assert stay == [0, 1, 2, 3]


def test_the_grid_is_whole_again() -> None:
    model = fill(create_model("vit_mu_patch16_112"), 0.2).eval()
    tokens = model.tokenize(torch.randn(2, 3, 112, 112))
    done = MergingBlocks(model.blocks, 10)(tokens)
    assert isinstance(done, Tokens)
    assert done.x.shape == tokens.x.shape
    assert len(done.cells[0].unique(dim=0)) == 49 - 2 * 10


def test_merging_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="merging takes away cells"):
        MergingBlocks([], 0)
