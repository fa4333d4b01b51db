"""Stacks of blocks and decoder blocks: token by token, they compute what they compute for a whole sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.conftest import fill
from vitrail.nn.attention.full import Attention
from vitrail.nn.block import Block
from vitrail.nn.decoder import DecoderBlock
from vitrail.nn.encoder import Encoder, build_encoder
from vitrail.tokens import Layout, Tokens

SIZES = {"width": 24, "hidden": 40, "norm_eps": 1e-6}
CHUNKS = [[1] * 9, [4, 1, 1, 3], [9]]
DTYPES = [torch.float32, torch.float64]


def sequence(dtype: torch.dtype, num: int = 9, width: int = 24) -> Tokens:
    return Tokens(torch.randn(2, num, width, dtype=dtype), Layout((num,)))


def run_in_steps(step: Callable[..., Any], tokens: Tokens, chunks: list[int], cache: Any = None) -> torch.Tensor:
    outputs = []
    for x in tokens.x.split(chunks, dim=1):
        output, cache = step(Tokens(x, Layout((x.shape[1],))), cache)
        outputs.append(output.x)
    return torch.cat(outputs, dim=1)


def causal_encoder(**more: Any) -> Encoder:
    return build_encoder(partial(Attention, width=24, heads=3, causal=True), depth=3, **SIZES, **more)


def decoder_block(**more: Any) -> DecoderBlock:
    return fill(DecoderBlock(heads=3, **SIZES, **more), 0.2).eval()


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer_scale", [None, 0.1])
def test_steps_of_a_stack_equal_its_forward_pass(
    layer_scale: float | None, dtype: torch.dtype, chunks: list[int]
) -> None:
    encoder = fill(causal_encoder(layer_scale=layer_scale), 0.2).eval().to(dtype)
    tokens = sequence(dtype)
    with torch.no_grad():
        expected = encoder(tokens).x
        assert (run_in_steps(encoder.step, tokens, chunks) - expected).abs().max() < 1e-6 * expected.abs().max()
        assert (run_in_steps(encoder[1].step, tokens, chunks) - encoder[1](tokens).x).abs().max() < 1e-5


def test_a_cache_is_as_large_as_documented() -> None:
    encoder = fill(causal_encoder(), 0.2).eval()
    _, caches = encoder.step(sequence(torch.float32))
    numbers = sum(cache.k.numel() + cache.v.numel() for cache in caches)
    assert numbers == 2 * 3 * 2 * 9 * 24  # 2 * depth * B * M * D


def test_a_stack_is_a_sequence_of_blocks() -> None:
    encoder = causal_encoder(drop_path_rate=0.4)
    assert all(isinstance(block, Block) for block in encoder)
    assert [block.drop_path.rate for block in encoder] == [0.0, 0.2, 0.4]
    assert next(iter(encoder.state_dict())) == "0.norm1.weight"
    tokens = sequence(torch.float32)
    with torch.no_grad():
        assert torch.equal(encoder.eval()(tokens).x, encoder[2](encoder[:2](tokens)).x)
    assert build_encoder(partial(Attention, width=24, heads=3), depth=1, **SIZES)[0].drop_path.rate == 0.0


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_of_a_decoder_block_equal_its_forward_pass(dtype: torch.dtype, chunks: list[int]) -> None:
    block = decoder_block(context_width=16).to(dtype)
    context = sequence(dtype, num=5, width=16)._replace(mask=torch.arange(5)[None] < torch.tensor([[5], [2]]))
    tokens = sequence(dtype)
    with torch.no_grad():
        expected = block(tokens, context).x
        found = run_in_steps(block.step, tokens, chunks, block.start(context))
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


def test_a_decoder_block_reads_the_past_and_the_context_but_no_padding() -> None:
    block = decoder_block()
    tokens, context = sequence(torch.float32), sequence(torch.float32, num=5)
    context = context._replace(mask=torch.arange(5)[None].expand(2, 5) < 3)

    def changed(output: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return ((output - block(tokens, context).x).abs() > 1e-5).any(dim=2)

    with torch.no_grad():
        later = tokens.x.clone()
        later[:, 4] += torch.randn(24)
        differs = changed(block(tokens.with_x(later), context).x)
        assert not differs[:, :4].any()
        assert differs[:, 4:].all()
        for cell, seen in ((2, True), (3, False)):
            other = context.x.clone()
            other[:, cell] += torch.randn(24)
            assert changed(block(tokens, context.with_x(other)).x).all() == seen
            assert changed(block(tokens, context.with_x(other)).x).any() == seen


def test_a_decoder_block_is_pre_norm_by_its_equations() -> None:
    block = decoder_block()
    tokens, context = sequence(torch.float32), sequence(torch.float32, num=5)
    with torch.no_grad():
        z = tokens.x + block.attn(tokens.with_x(block.norm1(tokens.x)))
        z = z + block.cross_attn(tokens.with_x(block.norm2(z)), context)
        z = z + block.mlp(block.norm3(z))
        assert torch.allclose(block(tokens, context).x, z, atol=1e-6)


def test_every_weight_of_a_decoder_block_learns() -> None:
    block = decoder_block(context_width=16).train()
    block(sequence(torch.float32), sequence(torch.float32, num=5, width=16)).x.square().sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_drop_path_of_a_decoder_block_acts_in_training_only() -> None:
    block = decoder_block(drop_path_rate=0.5)
    tokens, context = sequence(torch.float32), sequence(torch.float32, num=5)
    with torch.no_grad():
        assert torch.equal(block(tokens, context).x, block(tokens, context).x)
        block.train()
        outputs = [block(tokens, context).x for _ in range(8)]
    assert any(not torch.equal(outputs[0], other) for other in outputs[1:])
