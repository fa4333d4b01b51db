"""Every file of `nn/attention`: `weights` agrees with the fused kernel."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import fill
from vitrail import plug
from vitrail.errors import SpecError
from vitrail.nn.attention.full import Attention, CrossAttention, attend
from vitrail.tokens import Layout, Tokens

ENTRIES = plug.entries("vitrail.nn.attention")


def masked(num_real: list[int], num_tokens: int) -> torch.Tensor:
    return torch.arange(num_tokens)[None] < torch.tensor(num_real)[:, None]


@pytest.mark.parametrize("with_mask", [False, True], ids=["all", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("name", ENTRIES)
def test_weights_times_values_is_the_fused_output(name: str, causal: bool, with_mask: bool) -> None:
    attention = fill(plug.load("vitrail.nn.attention", name).Attention(width=24, heads=3, causal=causal), 0.3).eval()
    tokens = Tokens(torch.randn(2, 13, 24), Layout((3, 4), 1), masked([13, 9], 13) if with_mask else None)
    with torch.no_grad():
        weights = attention.weights(tokens)
        assert weights.shape == (2, 3, 13, 13)
        assert torch.allclose(weights.sum(-1), torch.ones(2, 3, 13), atol=1e-6)
        *_, v = attention.split(tokens)
        assert (attention.merge(weights @ v) - attention(tokens)).abs().max() < 1e-5
    if causal:
        assert weights.triu(1).abs().max() == 0
    if with_mask:
        assert weights[1, :, :, 9:].abs().max() == 0
        assert weights[0, :, -1, 9:].abs().max() > 0


def test_cross_attention_from_tokens_to_a_wider_context() -> None:
    cross = fill(CrossAttention(width=12, heads=2, context_width=20), 0.3).eval()
    tokens = Tokens(torch.randn(2, 5, 12), Layout((5,)))
    context = Tokens(torch.randn(2, 9, 20), Layout((3, 3)), masked([9, 4], 9))
    with torch.no_grad():
        weights = cross.weights(tokens, context)
        assert weights.shape == (2, 2, 5, 9)
        *_, v = cross.split(tokens, context)
        assert (cross.merge(weights @ v) - cross(tokens, context)).abs().max() < 1e-5
        # Hidden tokens have no influence.
        changed = context.with_x(torch.where(context.mask[..., None], context.x, 99.0))
        assert torch.allclose(cross(tokens, context), cross(tokens, changed), atol=1e-6)


def test_a_query_without_visible_keys_gets_zeros() -> None:
    attention = fill(Attention(width=8, heads=2), 0.3).eval()
    tokens = Tokens(torch.randn(1, 4, 8), Layout((4,)), torch.zeros(1, 4, dtype=torch.bool))
    with torch.no_grad():
        assert attention.weights(tokens).abs().max() == 0
        *_, v = attention.split(tokens)
        assert (attention.merge(attention.weights(tokens) @ v) - attention(tokens)).abs().max() < 1e-6


def test_attention_dropout_acts_in_training_only() -> None:
    attention = fill(Attention(width=8, heads=2, dropout_rate=0.5), 0.3)
    attention.proj_drop.p = 0.0  # leaves only the dropout of the attention weights
    tokens = Tokens(torch.randn(4, 6, 8), Layout((6,)))
    with torch.no_grad():
        assert not torch.equal(attention.train()(tokens), attention(tokens))
        assert torch.equal(attention.eval()(tokens), attention(tokens))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(SpecError, match=r"heads must divide width") as caught:
        Attention(width=192, heads=5)
    assert "heads=5, width=192" in str(caught.value)
    assert "3, 4, 6" in str(caught.value)


@pytest.mark.parametrize("num_tokens", [5, 64])
def test_training_in_bfloat16_computes_the_same_attention(num_tokens: int) -> None:
    """On a CPU this uses explicit products; the gradients are those of the fused kernel, rounded."""
    inputs = [torch.randn(2, 3, num_tokens, 8, requires_grad=True) for _ in range(3)]
    bf16_inputs = [tensor.detach().bfloat16().requires_grad_() for tensor in inputs]
    weight = torch.randn(2, 3, num_tokens, 8)
    (attend(*inputs) * weight).sum().backward()
    output = attend(*bf16_inputs)
    assert output.grad_fn is not None
    assert "Softmax" not in output.grad_fn.name()
    assert "Attention" not in output.grad_fn.name()
    (output * weight).sum().backward()
    assert (output - attend(*inputs)).abs().max() < 0.05
    for exact, rounded in zip(inputs, bf16_inputs, strict=True):
        assert exact.grad is not None
        assert rounded.grad is not None
        assert (exact.grad - rounded.grad).abs().max() < 0.1
    with torch.no_grad():
        fused = attend(*bf16_inputs)
    assert (output - fused).abs().max() < 0.05
