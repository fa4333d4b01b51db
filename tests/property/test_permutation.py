"""Self-attention operates on sets; only positions give the tokens an order."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import fill
from vitrail import create_model

COMMON = {"image_size": 64, "num_classes": 5}
WITHOUT = fill(create_model("vit_mu_patch16_224", position="none", pool="mean", class_token=False, **COMMON)).eval()
WITH = fill(create_model("vit_mu_patch16_224", pool="mean", class_token=False, **COMMON)).eval()


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(16)), seed=st.integers(0, 2**31))
def test_the_encoder_is_equivariant(order: list[int], seed: int) -> None:
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        tokens = WITHOUT.tokenize(image)
        permuted_after = WITHOUT.encode(tokens).x[:, order]
        permuted_before = WITHOUT.encode(tokens.with_x(tokens.x[:, order])).x
    assert torch.allclose(permuted_after, permuted_before, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(16)).filter(lambda order: order != list(range(16))))
def test_shuffling_patches_matters_only_with_positions(order: list[int]) -> None:
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    patches = image.view(3, 4, 16, 4, 16).permute(1, 3, 0, 2, 4).reshape(16, 3, 16, 16)[order]
    shuffled = patches.view(4, 4, 3, 16, 16).permute(2, 0, 3, 1, 4).reshape(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(WITHOUT(image), WITHOUT(shuffled), atol=1e-5)
        assert not torch.allclose(WITH(image), WITH(shuffled), atol=1e-4)
