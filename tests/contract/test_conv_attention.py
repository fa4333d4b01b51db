"""Attention with a head for each place of a kernel computes the convolution (arXiv 1911.03584)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange

from vitrail.errors import ShapeError, SpecError
from vitrail.nn.conv_attention import attention_from_conv
from vitrail.tokens import Layout, Tokens


def as_tokens(image: torch.Tensor) -> Tokens:
    return Tokens(rearrange(image, "B C Y X -> B (Y X) C"), Layout(tuple(image.shape[2:])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(8, 8), (5, 11), (3, 1)])
@pytest.mark.parametrize(("kernel", "bias"), [(3, True), (5, False), (1, True)])
def test_it_equals_a_convolution(kernel: int, bias: bool, size: tuple[int, int], dtype: torch.dtype) -> None:
    """With zero padding, at the borders too."""
    for seed in range(3):
        torch.manual_seed(seed)
        image = torch.randn(2, 4, *size, dtype=dtype)
        weight = torch.randn(6, 4, kernel, kernel, dtype=dtype)
        offset = torch.randn(6, dtype=dtype) if bias else None
        attention = attention_from_conv(weight, offset)
        expected = F.conv2d(image, weight, offset, padding=kernel // 2)
        found = attention(as_tokens(image))
        assert found.dtype == dtype
        assert (found - as_tokens(expected).x).abs().max() < (1e-4 if dtype == torch.float32 else 1e-10)


def test_each_head_attends_to_its_own_offset() -> None:
    attention = attention_from_conv(torch.randn(2, 2, 3, 3))
    weights = attention.weights((4, 5))
    assert weights.shape == (9, 20, 6 * 7)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(9, 20))
    frame = torch.stack(torch.meshgrid(torch.arange(-1, 5), torch.arange(-1, 6), indexing="ij"), dim=-1).view(-1, 2)
    cells = torch.cartesian_prod(torch.arange(4), torch.arange(5))
    offsets = torch.cartesian_prod(torch.tensor([-1, 0, 1]), torch.tensor([-1, 0, 1]))
    for head, offset in enumerate(offsets):
        assert torch.equal(frame[weights[head].argmax(dim=-1)], cells + offset)


def test_the_error_falls_with_the_sharpness() -> None:
    """Four neighbours of the centre share what it leaves: exp(-alpha) each."""
    torch.manual_seed(0)
    for alpha in (2.0, 6.0, 10.0):
        weights = attention_from_conv(torch.randn(1, 1, 3, 3, dtype=torch.float64), alpha=alpha).weights((9, 9))
        left = 1 - weights[4, 40].max().item()  # the middle head of the middle cell
        exp = 2.718281828459045**-alpha
        assert left == pytest.approx(4 * exp, rel=8 * exp)


def test_it_can_be_trained() -> None:
    attention = attention_from_conv(torch.randn(2, 2, 3, 3), alpha=1)
    attention(as_tokens(torch.randn(1, 2, 4, 4))).square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_other_kernels_are_refused() -> None:
    with pytest.raises(SpecError, match="window must be odd"):
        attention_from_conv(torch.randn(1, 1, 2, 2))
    with pytest.raises(ShapeError, match=r"needs a square kernel(.|\n)*3 x 5(.|\n)*3 x 3"):
        attention_from_conv(torch.randn(1, 1, 3, 5))
    attention = attention_from_conv(torch.randn(1, 1, 3, 3))
    with pytest.raises(ShapeError, match="needs rows and columns"):
        attention.weights((9,))
    with pytest.raises(ShapeError, match="needs every cell of the grid"):
        attention(as_tokens(torch.randn(1, 1, 4, 4)).keep(torch.tensor([[0, 3]])))
