"""The layers of `nn/mix` compute the equations of their papers, written out here cell by cell; gradients too."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import fill
from vitrail import plug

CHANNELS = 16
SIZES = [(4, 4), (3, 6)]
SETTINGS: dict[str, dict[str, Any]] = {
    "sasa": {"window": 3, "heads": 2},
    "lrnet": {"window": 3, "share": 4, "hidden": 5},
    "san_pairwise": {"window": 3, "share": 8, "reduction": 2},
    "san_patchwise": {"window": 3, "share": 8, "reduction": 2},
    "axial": {"heads": 2, "span": 4},
    "augmented": {"share": 0.5, "heads": 2, "span": 4},
}


def new_layer(name: str, stride: int = 1, **settings: Any) -> Any:
    module = plug.load("vitrail.nn.mix", name)
    spec = module.Spec.parse({"name": name, **SETTINGS[name], **settings})
    return fill(module.Layer(spec, CHANNELS, stride=stride), 0.4).double()


def linear(conv: torch.nn.Conv2d, vector: Tensor) -> Tensor:
    """A 1 x 1 convolution on one cell."""
    out = conv.weight[:, :, 0, 0] @ vector
    return out if conv.bias is None else out + conv.bias


def window_of(cell: tuple[int, int], size: tuple[int, int], window: int) -> list[tuple[int, int]]:
    """The cells of a window that are on the map."""
    reach = window // 2
    return [
        (y, x) for y, x in product(*(range(side) for side in size)) if max(abs(y - cell[0]), abs(x - cell[1])) <= reach
    ]


def each_cell(size: tuple[int, int], compute: Callable[[tuple[int, int]], Tensor]) -> Tensor:
    cells = [compute(cell) for cell in product(*(range(side) for side in size))]
    return torch.stack(cells, dim=-1).unflatten(-1, size)


def embedding(table: Any, offset: int, group: int = 0) -> Tensor:
    """The row of an offset; farther ones share the last."""
    return table.table[group, max(-table.reach, min(table.reach, offset)) + table.reach]


def sasa(layer: Any, image: Tensor) -> Tensor:
    """y_ij = sum over ab of softmax(q_ij' k_ab + q_ij' r_(a-i, b-j)) v_ab, equation 3."""
    size = (image.shape[1], image.shape[2])
    width = CHANNELS // layer.heads

    def compute(cell: tuple[int, int]) -> Tensor:
        out = []
        for head in range(layer.heads):
            part = slice(head * width, (head + 1) * width)
            q = linear(layer.query, image[:, *cell])[part]
            scores, values = [], []
            for a, b in window_of(cell, size, layer.window):
                k, v = (linear(project, image[:, a, b])[part] for project in (layer.key, layer.value))
                rows, columns = (
                    embedding(layer.rows, a - cell[0], head),
                    embedding(layer.columns, b - cell[1], head),
                )
                scores.append(q @ k + q @ torch.cat([rows, columns]))
                values.append(v)
            out.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        return torch.cat(out)

    return each_cell(size, compute)


def lrnet(layer: Any, image: Tensor) -> Tensor:
    """w = softmax(-(q - k)^2 + f(p - p')), equations 3 to 5; the input is aggregated."""
    size, share = (image.shape[1], image.shape[2]), layer.share

    def compute(cell: tuple[int, int]) -> Tensor:
        out = []
        seen = window_of(cell, size, layer.window)
        for group in range(CHANNELS // share):
            q = linear(layer.query, image[:, *cell])[group]
            scores = []
            for a, b in seen:
                k = linear(layer.key, image[:, a, b])[group]
                offset = torch.tensor([a - cell[0], b - cell[1]], dtype=image.dtype)
                scores.append(-((q - k) ** 2) + layer.geometry(offset)[group])
            weights = torch.stack(scores).softmax(0)
            values = torch.stack([image[group * share : (group + 1) * share, a, b] for a, b in seen])
            out.append(weights @ values)
        return torch.cat(out)

    return each_cell(size, compute)


def san_pairwise(layer: Any, image: Tensor) -> Tensor:
    """y_i = sum over j of softmax(gamma([phi(x_i) - psi(x_j), p_i - p_j])) * beta(x_j), equation 2."""
    size, share = (image.shape[1], image.shape[2]), CHANNELS // layer.heads
    first = torch.cat([layer.relate.weight[:, :, 0, 0], layer.place.weight], dim=1)

    def coordinates(cell: tuple[int, int]) -> Tensor:
        return torch.tensor([-1 + 2 * at / (side - 1) for at, side in zip(cell, size, strict=True)], dtype=image.dtype)

    def compute(cell: tuple[int, int]) -> Tensor:
        seen = window_of(cell, size, layer.window)
        scores = []
        for other in seen:
            relation = linear(layer.query, image[:, *cell]) - linear(layer.key, image[:, *other])
            place = layer.position(coordinates(cell)) - layer.position(coordinates(other))
            hidden = (first @ torch.cat([relation, place]) + layer.place.bias).relu()
            scores.append(linear(layer.score, hidden))
        weights = torch.stack(scores).softmax(0).repeat_interleave(share, dim=1)
        return (weights * torch.stack([linear(layer.value, image[:, *other]) for other in seen])).sum(0)

    return each_cell(size, compute)


def san_patchwise(layer: Any, image: Tensor) -> Tensor:
    """y_i = sum over j of gamma([phi(x_i), psi(x_R(i))])_j * beta(x_j), equation 4, without a softmax."""
    size, share, reach = (image.shape[1], image.shape[2]), CHANNELS // layer.heads, layer.window // 2
    steps = list(product(range(-reach, reach + 1), repeat=2))
    first = torch.cat([layer.own.weight[:, :, 0, 0], layer.around.weight.flatten(2).mT.flatten(1)], dim=1)

    def compute(cell: tuple[int, int]) -> Tensor:
        others = [(cell[0] + y, cell[1] + x) for y, x in steps]
        real = [0 <= y < size[0] and 0 <= x < size[1] for y, x in others]
        zero = torch.zeros(layer.relation, dtype=image.dtype)
        keys = [linear(layer.key, image[:, *at]) if ok else zero for at, ok in zip(others, real, strict=True)]
        hidden = (first @ torch.cat([linear(layer.query, image[:, *cell]), *keys]) + layer.around.bias).relu()
        weights = linear(layer.score, hidden).view(layer.heads, len(steps)).repeat_interleave(share, dim=0)
        terms = [
            weights[:, place] * linear(layer.value, image[:, *at])
            for place, (at, ok) in enumerate(zip(others, real, strict=True))
            if ok
        ]
        return torch.stack(terms).sum(0)

    return each_cell(size, compute)


def axis(layer: Any, image: Tensor) -> Tensor:
    """y_o = sum over p of softmax(q_o'k_p + q_o'r^q + k_p'r^k)(v_p + r^v) along the columns, equation 4."""
    size, heads, width = (image.shape[1], image.shape[2]), layer.heads, layer.width

    def compute(cell: tuple[int, int]) -> Tensor:
        out = []
        for head in range(heads):
            narrow, wide = (slice(head * each, (head + 1) * each) for each in (width // 2, width))
            q = linear(layer.query, image[:, *cell])[narrow]
            scores, values = [], []
            for y in range(size[0]):
                step = y - cell[0]
                k = linear(layer.key, image[:, y, cell[1]])[narrow]
                v = linear(layer.value, image[:, y, cell[1]])[wide]
                r_q, r_k, r_v = (
                    embedding(table, step) for table in (layer.query_table, layer.key_table, layer.value_table)
                )
                scores.append(q @ k + q @ r_q + k @ r_k)
                values.append(v + r_v)
            out.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        return torch.cat(out)

    return each_cell(size, compute)


def axial(layer: Any, image: Tensor) -> Tensor:
    """The height axis, then the width axis."""
    return axis(layer.width, axis(layer.height, image).mT).mT


def augmented(layer: Any, image: Tensor) -> Tensor:
    """[Conv(X), MHA(X) W], MHA = softmax((Q K' + S_H + S_W) / sqrt(d)) V, equations 1 to 5."""
    size, attention = (image.shape[1], image.shape[2]), layer.attention
    narrow, wide = attention.value.out_channels // attention.heads, attention.width

    def compute(cell: tuple[int, int]) -> Tensor:
        out = []
        for head in range(attention.heads):
            part = slice(head * wide, (head + 1) * wide)
            q = linear(attention.query, image[:, *cell])[part]
            scores, values = [], []
            for y, x in product(*(range(side) for side in size)):
                k = linear(attention.key, image[:, y, x])[part]
                by_rows, by_columns = embedding(attention.rows, y - cell[0]), embedding(attention.columns, x - cell[1])
                scores.append((q @ k + q @ by_rows + q @ by_columns) / wide**0.5)
                values.append(linear(attention.value, image[:, y, x])[head * narrow : (head + 1) * narrow])
            out.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        return linear(layer.proj, torch.cat(out))

    return torch.cat([layer.conv(image[None])[0], each_cell(size, compute)])


EQUATIONS = {
    "sasa": sasa,
    "lrnet": lrnet,
    "san_pairwise": san_pairwise,
    "san_patchwise": san_patchwise,
    "axial": axial,
    "augmented": augmented,
}


def test_every_layer_has_its_equation() -> None:
    assert {*EQUATIONS, "conv"} == set(plug.entries("vitrail.nn.mix"))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", EQUATIONS)
def test_a_layer_computes_its_equation(name: str, size: tuple[int, int]) -> None:
    layer = new_layer(name)
    images = torch.randn(2, CHANNELS, *size, dtype=torch.float64, requires_grad=True)
    found = layer(images)
    expected = torch.stack([EQUATIONS[name](layer, image) for image in images])
    assert found.shape == expected.shape == images.shape
    assert expected.std() > 0.1
    assert (found - expected).abs().max() < 1e-9
    weight = torch.randn_like(expected)
    inputs = [images, *layer.parameters()]
    names = ["input", *dict(layer.named_parameters())]
    gradients = [torch.autograd.grad((each * weight).sum(), inputs, allow_unused=True) for each in (found, expected)]
    for part, ours, theirs in zip(names, *gradients, strict=True):
        assert ours is not None, part
        assert (ours - theirs).abs().max() < 1e-9, part


@pytest.mark.parametrize("name", EQUATIONS)
def test_in_single_precision(name: str) -> None:
    layer, images = new_layer(name), torch.randn(1, CHANNELS, 3, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = EQUATIONS[name](layer, images[0])[None]
        found = layer.float()(images.float())
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max().clamp_min(1.0)


def test_windowed_attention_is_full_attention_under_a_mask() -> None:
    """Of SASA, for a window of 5 on a map that blocks do not divide: the matrix of all pairs, masked."""
    layer = new_layer("sasa", window=5, heads=4)
    images = torch.randn(2, CHANNELS, 7, 5, dtype=torch.float64, requires_grad=True)
    q, k, v = (
        each(images).unflatten(1, (4, 4)).flatten(3).transpose(2, 3) for each in (layer.query, layer.key, layer.value)
    )
    rows, columns = torch.meshgrid(torch.arange(7), torch.arange(5), indexing="ij")
    down, right = (each.flatten()[None] - each.flatten()[:, None] for each in (rows, columns))
    inside = (down.abs() <= 2) & (right.abs() <= 2)
    tables = [table.table[:, step.clamp(-2, 2) + 2] for table, step in ((layer.rows, down), (layer.columns, right))]
    scores = q @ k.mT + torch.einsum("bhne,hnme->bhnm", q, torch.cat(tables, dim=-1))
    weights = scores.masked_fill(~inside, -torch.inf).softmax(-1)
    expected = (weights @ v).transpose(2, 3).flatten(1, 2).unflatten(2, (7, 5))
    assert (layer(images) - expected).abs().max() < 1e-9
    assert (layer.weights(images) - weights).abs().max() < 1e-9
    ours, theirs = (torch.autograd.grad(each.square().sum(), images)[0] for each in (layer(images), expected))
    assert (ours - theirs).abs().max() < 1e-9
