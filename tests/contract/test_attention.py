"""Every file of `nn/attention`: `weights` agrees with the fused kernel, and steps with a causal forward pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import fill
from vitrail import plug
from vitrail.errors import SpecError
from vitrail.nn import dot_product
from vitrail.nn.attention.full import Attention, CrossAttention
from vitrail.nn.dot_product import attend, attention_weights, merge_heads, split_heads
from vitrail.tokens import Layout, Tokens

ENTRIES = plug.entries("vitrail.nn.attention")
CAUSAL = [name for name in ENTRIES if hasattr(plug.load("vitrail.nn.attention", name).Attention, "step")]


def masked(num_real: list[int], num_tokens: int) -> torch.Tensor:
    return torch.arange(num_tokens)[None] < torch.tensor(num_real)[:, None]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_attention_is_built_from_its_specification(name: str) -> None:
    module = plug.load("vitrail.nn.attention", name)
    spec = module.Spec.parse({"name": name})
    assert type(spec).parse_yaml(spec.to_yaml()) == spec
    by_spec, by_default = (fill(module.Attention(*given, width=24, heads=3)).eval() for given in ([spec], []))
    tokens = Tokens(torch.randn(2, 13, 24), Layout((3, 4), 1))
    with torch.no_grad():
        assert torch.equal(by_spec(tokens), by_default(tokens))


@pytest.mark.parametrize("with_mask", [False, True], ids=["all", "padded"])
@pytest.mark.parametrize(
    ("name", "causal"), [(name, causal) for name in ENTRIES for causal in (False, True)[: 1 + (name in CAUSAL)]]
)
def test_weights_times_values_is_the_fused_output(name: str, causal: bool, with_mask: bool) -> None:
    more = {"causal": True} if causal else {}
    attention = fill(plug.load("vitrail.nn.attention", name).Attention(width=24, heads=3, **more), 0.3).eval()
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
@pytest.mark.parametrize("limit", ["none", "causal", "mask", "pair_mask", "bias"])
def test_training_in_bfloat16_computes_the_same_attention(num_tokens: int, limit: str) -> None:
    """On a CPU this uses explicit products; the gradients are those of the fused kernel, rounded."""
    pairs = torch.rand(2, num_tokens, num_tokens) < 0.5
    pairs[0, 1] = False  # a query that sees nothing
    limits: dict[str, dict[str, Any]] = {
        "none": {},
        "causal": {"causal": True},
        "mask": {"mask": masked([num_tokens, 3], num_tokens)},
        "pair_mask": {"pair_mask": pairs},
        "bias": {"bias": torch.randn(1, 3, num_tokens, num_tokens)},
    }
    attend = partial(dot_product.attend, **limits[limit])
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


limits = st.fixed_dictionaries(
    {
        "num_queries": st.integers(1, 6),
        "more_keys": st.integers(0, 5),
        "causal": st.booleans(),
        "mask": st.booleans(),
        "pair_mask": st.sampled_from(["", "shared", "own"]),
        "bias": st.sampled_from([None, (1, 1), (1, 3), (2, 1), (2, 3)]),
        "infinite": st.booleans(),
        "fused": st.sampled_from([None, True, False]),
        "seed": st.integers(0, 99),
    }
)


@settings(deadline=None, max_examples=150)
@given(limits=limits)
def test_weights_and_output_agree_under_all_limits(limits: dict[str, Any]) -> None:
    """Also in their gradients, and where a query sees no key at all."""
    torch.manual_seed(limits["seed"])
    num_queries, num_keys = limits["num_queries"], limits["num_queries"] + limits["more_keys"]
    q = torch.randn(2, 3, num_queries, 4, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 3, num_keys, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    more: dict[str, Any] = {"causal": limits["causal"]}
    if limits["mask"]:
        more["mask"] = torch.rand(2, num_keys) < 0.7
    if limits["pair_mask"]:
        more["pair_mask"] = torch.rand(1 + (limits["pair_mask"] == "own"), num_queries, num_keys) < 0.7
    if limits["bias"]:
        more["bias"] = torch.randn(*limits["bias"], num_queries, num_keys, dtype=torch.float64)
        if limits["infinite"]:
            more["bias"] = more["bias"].masked_fill(more["bias"] > 0.5, -torch.inf)
    weights = attention_weights(q, k, **more)
    sums = weights.sum(dim=-1)
    assert torch.allclose(sums, sums.round())
    output = attend(q, k, v, fused=limits["fused"], **more)
    assert torch.allclose(weights @ v, output, atol=1e-9)
    gradients = [torch.autograd.grad(each.square().sum(), (q, k, v)) for each in (weights @ v, output)]
    for by_weights, by_output in zip(*gradients, strict=True):
        assert torch.allclose(by_weights, by_output, atol=1e-9)
    some = torch.arange(0, num_queries, 2)
    assert torch.allclose(attention_weights(q, k, queries=some, **more), weights[:, :, some])


def test_limits_hide_what_they_say() -> None:
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8)
    pairs = torch.ones(1, 4, 6, dtype=torch.bool)
    pairs[0, 2, 5] = False
    weights = attention_weights(q, k, mask=masked([6, 5], 6), pair_mask=pairs)
    assert weights[0, :, 2, 5].abs().max() == 0
    assert weights[0, :, 1, 5].min() > 0
    assert weights[1, :, :, 5].abs().max() == 0
    bias = torch.zeros(1, 3, 4, 6)
    bias[0, 1, 2, 3] = 50.0
    weights = attention_weights(q, k, bias=bias)
    assert weights[:, 1, 2, 3].min() > 0.99
    assert weights[:, 0, 2, 3].max() < 0.99


@pytest.mark.parametrize("with_gradient", [False, True])
def test_causal_queries_are_the_last_of_the_tokens(with_gradient: bool) -> None:
    """Query i of N sees the keys up to M - N + i: one query sees them all."""
    q, k, v = (torch.randn(1, 2, num, 4, requires_grad=with_gradient) for num in (3, 5, 5))
    weights = attention_weights(q, k, causal=True)
    assert torch.equal(weights[0, 0] > 0, torch.ones(3, 5).tril(2) > 0)
    for fused in (True, False):
        assert torch.allclose(attend(q, k, v, causal=True, fused=fused), weights @ v, atol=1e-6)
        last = attend(q[:, :, -1:], k, v, causal=True, fused=fused)
        assert torch.allclose(last, attend(q[:, :, -1:], k, v), atol=1e-6)
        assert torch.allclose(last, attend(q, k, v, causal=True, fused=fused)[:, :, -1:], atol=1e-6)


@pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 1, 3], [9], [2, 7]])
@pytest.mark.parametrize("with_mask", [False, True], ids=["all", "padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CAUSAL)
def test_steps_equal_the_causal_forward_pass(name: str, dtype: torch.dtype, with_mask: bool, chunks: list[int]) -> None:
    attention = plug.load("vitrail.nn.attention", name).Attention(width=24, heads=3, causal=True)
    attention = fill(attention, 0.3).eval().to(dtype)
    x = torch.randn(2, 9, 24, dtype=dtype)
    # Prompts of different lengths are padded at the start, so that all of them end together.
    mask = masked([9, 9], 9) & (torch.arange(9) >= torch.tensor([[0], [3]])) if with_mask else None
    with torch.no_grad():
        expected = attention(Tokens(x, Layout((9,)), mask))
        found, cache, start = [], None, 0
        for num in chunks:
            part = slice(start, start + num)
            output, cache = attention.step(
                Tokens(x[:, part], Layout((num,)), None if mask is None else mask[:, part]), cache
            )
            found.append(output)
            start += num
    # Rounding is relative: of values up to 5, AVX2 and AVX-512 keep different last digits.
    assert (torch.cat(found, dim=1) - expected).abs().max() < 1e-6 * expected.abs().max()
    assert cache is not None
    assert cache.k.shape == cache.v.shape == (2, 3, 9, 8)


def test_padding_may_begin_or_end_between_steps() -> None:
    attention = fill(Attention(width=8, heads=2, causal=True), 0.3).eval()
    x = torch.randn(2, 6, 8)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 0] = False
    with torch.no_grad():
        expected = attention(Tokens(x, Layout((6,)), mask))
        first, cache = attention.step(Tokens(x[:, :2], Layout((2,)), mask[:, :2]))
        second, _ = attention.step(Tokens(x[:, 2:], Layout((4,))), cache)
    assert torch.allclose(torch.cat([first, second], dim=1), expected, atol=1e-6)


def test_only_causal_attention_has_steps() -> None:
    with pytest.raises(SpecError, match=r"only causal attention(.|\n)*causal=True"):
        Attention(width=8, heads=2).step(Tokens(torch.randn(1, 1, 8), Layout((1,))))


def test_an_empty_batch() -> None:
    """The last process may have none, and must not fall behind the others."""
    assert split_heads(torch.zeros(0, 5, 12), 2, num=3).shape == (3, 0, 2, 5, 2)
    assert merge_heads(torch.zeros(0, 2, 5, 2)).shape == (0, 5, 4)
    for name in ENTRIES:
        attention = plug.load("vitrail.nn.attention", name).Attention(width=24, heads=3)
        x = torch.zeros(0, 13, 24, requires_grad=True)
        output = attention(Tokens(x, Layout((3, 4), 1)))
        output.sum().backward()
        assert output.shape == (0, 13, 24)
