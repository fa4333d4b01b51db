"""The model against equations 1 to 4 of "An Image is Worth 16x16 Words", transcribed in plain NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.conftest import fill
from vitrail import create_model
from vitrail.nn.position import resize_table, sincos_1d, sincos_2d, sincos_3d
from vitrail.tokens import Layout

erf = np.vectorize(math.erf)


def layer_norm(z, w, name):
    centred = z - z.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}.weight"] + w[f"{name}.bias"]


def attention(z, w, name, heads):
    q, k, v = np.split(z @ w[f"{name}.qkv.weight"].T + w[f"{name}.qkv.bias"], 3, axis=-1)
    outputs = []
    for qh, kh, vh in zip(*(np.split(part, heads, axis=-1) for part in (q, k, v)), strict=True):
        scores = qh @ kh.T / math.sqrt(qh.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        outputs.append(weights / weights.sum(-1, keepdims=True) @ vh)
    return np.concatenate(outputs, axis=-1) @ w[f"{name}.proj.weight"].T + w[f"{name}.proj.bias"]


def mlp(z, w, name):
    h = z @ w[f"{name}.fc1.weight"].T + w[f"{name}.fc1.bias"]
    h = h * 0.5 * (1 + erf(h / math.sqrt(2)))
    return h @ w[f"{name}.fc2.weight"].T + w[f"{name}.fc2.bias"]


def patches(image, side):
    _, rows, columns = image.shape
    cut = [
        image[:, y : y + side, x : x + side].reshape(-1) for y in range(0, rows, side) for x in range(0, columns, side)
    ]
    assert len(cut) == rows * columns // side**2
    return np.stack(cut)


@pytest.mark.parametrize("size", [(64, 64), (32, 96)])
def test_equations(size: tuple[int, int]) -> None:
    model = fill(create_model("vit_mu_patch16_224", image_size=size, num_classes=7)).eval()
    w = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    image = torch.randn(3, *size)

    x_p = patches(image.double().numpy(), 16)
    E = w["patch_embed.proj.weight"].reshape(32, -1).T
    z = np.concatenate([w["cls_token"][0], x_p @ E + w["patch_embed.proj.bias"]]) + w["pos_embed"][0]  # (1)
    with torch.no_grad():
        assert np.abs(model.tokenize(image[None]).x[0].numpy() - z).max() < 1e-5
    for layer in range(model.spec.depth):
        name = f"blocks.{layer}"
        z = attention(layer_norm(z, w, f"{name}.norm1"), w, f"{name}.attn", heads=2) + z  # (2)
        z = mlp(layer_norm(z, w, f"{name}.norm2"), w, f"{name}.mlp") + z  # (3)
    y = layer_norm(z[0], w, "norm")  # (4)
    logits = y @ w["head.weight"].T + w["head.bias"]

    with torch.no_grad():
        ours = model(image[None])[0].numpy()
    assert np.abs(ours - logits).max() < 1e-5
    assert np.abs(logits).max() > 0.1


def test_sine_cosine_positions_follow_the_formula() -> None:
    table = sincos_1d(50, 16)
    for position, i in [(0, 0), (1, 0), (7, 3), (49, 7)]:
        angle = position / 10000 ** (2 * i / 16)
        assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_sine_cosine_2d_separates_rows_and_columns() -> None:
    table = sincos_2d((3, 5), 16).view(3, 5, 16)
    assert torch.equal(table[0, :, 8:], table[0, :1, 8:].expand(5, 8))  # the second half depends on the row only
    assert torch.equal(table[:, 0, :8], table[:1, 0, :8].expand(3, 8))  # the first half depends on the column only
    assert len({tuple(cell) for cell in table.view(15, 16).tolist()}) == 15
    assert table[2, 3, 0].item() == pytest.approx(math.sin(3))
    assert table[2, 3, 8].item() == pytest.approx(math.sin(2))


def test_sine_cosine_3d_separates_frames_rows_and_columns() -> None:
    table = sincos_3d((2, 3, 5), 32).view(2, 3, 5, 32)
    parts = (2, slice(0, 8)), (1, slice(8, 16)), (0, slice(16, 32))  # columns, rows, frames
    for axis, part in parts:
        first = table[..., part].index_select(axis, torch.tensor([0]))
        assert torch.equal(table.movedim(axis, 0)[:, 0, 0, part], table.movedim(axis, 0)[:, -1, -1, part])
        assert not torch.equal(table[..., part], first.expand(2, 3, 5, -1))
    assert len({tuple(cell) for cell in table.view(30, 32).tolist()}) == 30
    assert table[1, 2, 3, 0].item() == pytest.approx(math.sin(3))
    assert table[1, 2, 3, 4].item() == pytest.approx(math.cos(3))
    assert table[1, 2, 3, 9].item() == pytest.approx(math.sin(2 / 10000 ** (1 / 3)))
    assert table[1, 2, 3, 16].item() == pytest.approx(math.sin(1))
    assert table[1, 2, 3, 31].item() == pytest.approx(math.cos(1 / 10000))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *[((14, 14), (24, 24)), ((14, 14), (10, 18)), ((7, 5), (3, 11)), ((4, 4), (4, 4))],
        *[((14,), (24,)), ((9,), (4,)), ((4, 7, 5), (8, 3, 11)), ((2, 4, 4), (3, 4, 4))],
    ],
)
def test_zoom_is_ndimage_zoom(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    from scipy.ndimage import zoom

    table = torch.randn(1, 1 + math.prod(old), 8, dtype=torch.float64)
    ours = resize_table(table, Layout(old, 1), Layout(new, 1), "zoom")
    grid = table[0, 1:].view(*old, 8).numpy()
    theirs = zoom(grid, [*(after / before for before, after in zip(old, new, strict=True)), 1], order=1)
    assert theirs.shape == (*new, 8)
    assert np.abs(ours[0, 1:].view(*new, 8).numpy() - theirs).max() < 1e-10
    assert torch.equal(ours[:, :1], table[:, :1])


def test_the_two_resize_rules_differ() -> None:
    table = torch.randn(1, 17, 8)
    old, new = Layout((4, 4), 1), Layout((7, 6), 1)
    assert not torch.allclose(
        resize_table(table, old, new, "zoom"), resize_table(table, old, new, "bicubic"), atol=1e-2
    )
