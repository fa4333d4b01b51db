"""Rotary positions in a grid, and projections without a key bias, as in DINOv3."""

from __future__ import annotations

from typing import Any

import torch

from tests.conftest import fill
from vitrail import create_model
from vitrail.catalogue import build, on_meta
from vitrail.nn.rotary import Rotary2d
from vitrail.tokens import Layout, Tokens


def make_model(**more: Any) -> Any:
    return fill(create_model("vit_mu_patch16_dinov3_qkvb", image_size=(48, 80), num_classes=10, **more)).eval()


def test_angles_are_computed_once_and_are_not_weights() -> None:
    model = make_model()
    assert all(block.attn.rotary is model.rotary for block in model.blocks)
    assert not [name for name in model.state_dict() if "rotary" in name]
    with on_meta():
        assert not build(model.spec).rotary.cos.is_meta  # so that loading weights completes a meta model


def test_prefix_tokens_and_the_middle_of_the_grid_are_not_rotated() -> None:
    rotary = Rotary2d(layout=Layout((3, 5), 2), width=8)
    x = torch.randn(2, 1, 3, 17, 8)
    turned = rotary(x, Tokens(torch.zeros(1, 17, 1), Layout((3, 5), 2)))
    still = [0, 1, 2 + 1 * 5 + 2]
    assert torch.equal(turned[..., still, :], x[..., still, :])
    assert (turned - x).abs().amax(dim=(0, 1, 2, 4)).nonzero().flatten().tolist() == sorted({*range(17)} - {*still})
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)


def test_a_subset_of_the_cells_keeps_its_rotary_places() -> None:
    model = make_model(depth=1)
    tokens = model.tokenize(torch.randn(2, 3, 48, 80))
    places = torch.tensor([[14, 3, 8], [0, 1, 2]])
    with torch.no_grad():
        q, k, _ = model.blocks[0].attn.split(tokens)
        q_kept, k_kept, _ = model.blocks[0].attn.split(tokens.keep(places))
    rows = tokens.layout.rows(places)
    for sample in range(2):
        for whole, kept in ((q, q_kept), (k, k_kept)):
            assert torch.allclose(kept[sample], whole[sample][:, rows[sample]], atol=1e-6)


def test_scores_depend_on_the_distance_only() -> None:
    """Equal queries and equal keys everywhere: moving both cells by a row or a column changes no score."""
    rotary = Rotary2d(layout=Layout((3, 5), 2), width=16)  # another grid: its angles are computed when it is met
    tokens = Tokens(torch.zeros(1, 25, 1), Layout((4, 6), 1))
    q, k = (rotary(torch.randn(1, 1, 1, 16).expand(1, 1, 25, 16), tokens)[0, 0, 1:] for _ in range(2))
    scores = (q @ k.T).view(4, 6, 4, 6)
    assert torch.allclose(scores[1:, :, 1:], scores[:-1, :, :-1], atol=1e-4)
    assert torch.allclose(scores[:, 1:, :, 1:], scores[:, :-1, :, :-1], atol=1e-4)
    assert (scores[1:] - scores[:-1]).abs().max() > 0.1
    assert (scores[:, 1:] - scores[:, :-1]).abs().max() > 0.1


def test_training_never_gives_keys_a_bias() -> None:
    model = make_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = (model(torch.randn(2, 3, 48, 80)) - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    width = model.spec.width
    for block in model.blocks:
        zero = Tokens(torch.zeros(1, model.spec.layout.num_tokens, width), model.spec.layout)
        q, k, v = block.attn.split(zero)
        assert k.abs().max() == 0
        assert min(q.abs().max(), v.abs().max()) > 0
