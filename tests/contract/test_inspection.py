"""Explanations are correct: checked against the fused kernel, numbers computed by hand, and closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import fill
from tests.contract.small_models import SMALL, small
from vitrail import create_model, plug
from vitrail.errors import InspectionError
from vitrail.inspection import faithfulness, trace
from vitrail.inspection.distance import entropy, mean_distance
from vitrail.inspection.embedding import filters, position_similarity, principal_components, token_colours
from vitrail.inspection.method.rollout import roll_out
from vitrail.inspection.receptive import radius, receptive_fields
from vitrail.tokens import Layout, Tokens

ATTENTIONS = plug.entries("vitrail.nn.attention")


@pytest.mark.parametrize("name", ATTENTIONS)
def test_weights_times_values_equal_the_fused_kernel(name: str) -> None:
    attention = fill(plug.load("vitrail.nn.attention", name).Attention(width=32, heads=4), 0.3).eval()
    tokens = Tokens(torch.randn(2, 21, 32), Layout((4, 5), 1))
    _, _, values = attention.split(tokens)
    weights = attention.weights(tokens)
    assert torch.allclose(attention.merge(weights @ values), attention(tokens), atol=1e-5)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(2, 4, 21), atol=1e-6)
    rows = torch.tensor([0, 7, 20])
    assert torch.allclose(attention.weights(tokens, rows), weights[:, :, rows], atol=1e-6)


@pytest.mark.parametrize("kind", SMALL)
def test_the_trace_equals_the_forward_pass(kind: str) -> None:
    model = small(kind)
    images = torch.randn(2, 3, *model.spec.image_size)
    with torch.no_grad():
        assert torch.allclose(trace.trace(model, images).logits, model(images), atol=1e-5)
        layers = list(trace.iter_attention(model, images))
    assert len(layers) == model.spec.depth
    assert all(layer.shape[-2:] == (model.spec.layout.num_tokens,) * 2 for layer in layers)


def test_rollout_of_two_layers_by_hand() -> None:
    """[[3/4, 1/4], [1/2, 1/2]] after [[1/2, 1/2], [0, 1]], each averaged with the identity."""
    first = torch.tensor([[[[0.5, 0.5], [0.0, 1.0]]]])
    second = torch.tensor([[[[0.75, 0.25], [0.5, 0.5]]]])
    rolled = roll_out([first, second])
    by_hand = torch.tensor([[7 / 8, 1 / 8], [1 / 4, 3 / 4]]) @ torch.tensor([[3 / 4, 1 / 4], [0.0, 1.0]])
    assert torch.allclose(rolled[0], by_hand)
    assert torch.allclose(rolled[0], torch.tensor([[21 / 32, 11 / 32], [3 / 16, 13 / 16]]))


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("discard_rate", [0.0, 0.5, 0.9])
def test_rollout_rows_sum_to_one(fusion: Any, discard_rate: float) -> None:
    layers = [torch.randn(2, 3, 10, 10).softmax(dim=-1) for _ in range(4)]
    rolled = roll_out(layers, fusion=fusion, discard_rate=discard_rate)
    assert torch.allclose(rolled.sum(dim=-1), torch.ones(2, 10), atol=1e-6)
    assert not torch.allclose(rolled, roll_out(layers, fusion="mean", discard_rate=0.3), atol=1e-4)


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_attention_distance_of_closed_forms(prefix: int) -> None:
    layout = Layout((1, 7), prefix)
    num = layout.num_tokens
    diagonal, uniform = torch.eye(num)[None, None], torch.full((1, 1, num, num), 1 / num)
    assert mean_distance(diagonal, layout, (16, 16)).item() == 0.0
    # In a row of n cells the mean of |i - j| over all pairs is (n^2 - 1) / (3 n).
    assert mean_distance(uniform, layout, (16, 16)).item() == pytest.approx(16 * (49 - 1) / (3 * 7))
    assert entropy(diagonal).item() == pytest.approx(0.0, abs=1e-9)
    assert entropy(uniform).item() == pytest.approx(math.log2(num))


def test_distances_are_in_pixels_of_oblong_cells() -> None:
    layout = Layout((2, 1))
    swapped = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])
    assert mean_distance(swapped, layout, (10, 99)).item() == 10.0


@pytest.mark.parametrize(("class_token", "registers", "num"), [(False, 0, 841), (False, 4, 845), (True, 4, 846)])
def test_registers_never_shift_the_map(class_token: bool, registers: int, num: int) -> None:
    """A model built to attend to bright patches: with any prefix, the heatmap peaks where the image is brightest."""
    fields = {"class_token": class_token, "registers": registers, "pool": "token" if class_token else "mean"}
    model = create_model("vit_mu_patch14_224", image_size=406, num_classes=3, depth=1, **fields).eval()
    assert model.spec.layout.num_tokens == num
    width, (block,) = model.spec.width, model.blocks
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.patch_embed.proj.weight[0] = 1.0  # a token's first entry is its patch's brightness
        block.norm1.weight.fill_(1.0)
        block.attn.qkv.weight[width : 2 * width] = torch.eye(width)  # keys are the tokens
        block.attn.qkv.bias[0] = 3.0  # all queries select the first entry
    images = torch.zeros(1, 3, 406, 406)
    images[..., 11 * 14 : 12 * 14, 23 * 14 : 24 * 14] = 1.0
    heatmap = plug.load("vitrail.inspection.method", "rollout").compute_heatmaps(model, images, [0])[0]
    assert divmod(int(heatmap.argmax()), 29) == (11, 23)
    assert heatmap[11, 23] > 5 * heatmap.flatten().sort().values[-2]


@pytest.mark.parametrize("kind", ["class token", "mean pooling", "attention pooling"])
def test_relevance_equals_its_definition(kind: str) -> None:
    """A forward pass with explicit attention matrices, and their gradients by autograd."""
    model = small(kind)
    images = torch.randn(1, 3, 224, 224)
    tokens = model.tokenize(images)
    matrices: list[Tensor] = []

    def record(weights: Tensor) -> Tensor:
        weights.retain_grad()
        matrices.append(weights)
        return weights

    for block in model.blocks:
        normed = tokens.with_x(block.norm1(tokens.x))
        _, _, values = block.attn.split(normed)
        z = tokens.x + block.attn.merge(record(block.attn.weights(normed)) @ values)
        tokens = tokens.with_x(z + block.mlp(block.norm2(z)))
    output = tokens.with_x(model.norm(tokens.x))
    pool = model.attn_pool
    if pool is None:
        logits = model.classify(output)
    else:
        query = pool.query(output)
        read = pool.merge(record(pool.weights(query, output)) @ pool.split(query, output)[2])
        logits = model.head(model.pre_logits(model.fc_norm((read + pool.mlp(pool.norm(read)))[:, 0])))
    logits[0, 3].backward()
    supporting = [(each * each.grad).clamp_min(0).mean(dim=1)[0].detach() for each in matrices]
    num = output.layout.num_tokens
    flow = torch.eye(num)
    for matrix in supporting[: len(model.blocks)]:
        flow = flow + matrix @ flow
    row = supporting[-1] if pool is not None else trace.pooling_weights(model, output) @ (flow - torch.eye(num))
    expected = trace.on_grid(row @ flow if pool is not None else row, output.layout)[0]
    found = plug.load("vitrail.inspection.method", "relevance").compute_heatmaps(model, images, [3])[0]
    assert torch.allclose(found, expected, atol=1e-6 * expected.max().item() + 1e-9)
    assert expected.max() > 0


def test_principal_components_are_those_of_the_covariance() -> None:
    rows = torch.randn(50, 6) * torch.tensor([5.0, 1.0, 3.0, 0.1, 0.2, 0.3])
    found = principal_components(rows, 3)
    _, vectors = torch.linalg.eigh(torch.cov(rows.T.double()))
    for place in range(3):
        assert abs((found[place].double() @ vectors[:, -1 - place]).item()) == pytest.approx(1.0, abs=1e-5)
        assert found[place][found[place].abs().argmax()] > 0


def test_filters_positions_and_token_colours() -> None:
    model = small("160 x 288 px")
    assert filters(model, 5).shape == (5, 16, 16, 3)
    similarity = position_similarity(model)
    assert similarity.shape == (10, 18, 10, 18)
    assert torch.allclose(similarity[3, 4, 3, 4], torch.tensor(1.0))
    with pytest.raises(InspectionError, match="no linear patch embedding"):
        filters(small("convolutional stem"))
    with pytest.raises(InspectionError, match="no linear patch embedding"):
        filters(small("hybrid"))
    with pytest.raises(InspectionError, match=r"adds no position embeddings(.|\n)*position=rotary_2d"):
        position_similarity(small("dinov3"))
    colours = token_colours(torch.randn(30, 12))
    assert colours.shape == (30, 3)
    assert colours.min() == 0.0
    assert colours.max() == 1.0


def test_receptive_fields_of_convolutions_grow_and_attention_is_global() -> None:
    convolutions = fill(create_model("resnetv2_50x1_bit", num_classes=4), 0.05).eval()
    images = torch.randn(1, 3, 224, 224)
    radii = [radius(field) for _, field in receptive_fields(convolutions, images)]
    assert radii == sorted(radii)
    stem, first, *_ = (field for _, field in receptive_fields(small("class token"), images))
    assert (stem > 0).sum() == 16 * 16
    assert (first > 0).float().mean() > 0.99
    with pytest.raises(InspectionError, match="no stages to compare"):
        list(receptive_fields(create_model("linear_16"), images[..., :16, :16]))


def test_receptive_fields_of_a_resnet_with_attention() -> None:
    model = fill(create_model("resnet26_sasa_32", num_classes=4, layers=(1, 1)), 0.3).eval()
    fields = dict(receptive_fields(model, torch.randn(1, 3, 32, 32)))
    assert list(fields) == ["stem", "stage 1", "stage 2"]
    assert int((fields["stem"] > 0).sum()) == 9
    assert radius(fields["stem"]) < radius(fields["stage 1"])


def test_faithfulness_separates_a_good_map_from_a_bad_one() -> None:
    """For a model that reads one cell only, inserting that cell first is best, inserting it last is worst."""

    class Corner(torch.nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            score = images[:, :, :16, :16].std(dim=(1, 2, 3)) * 20
            return torch.stack([score, torch.full_like(score, 5.0)], dim=1)

    images = torch.randn(1, 3, 64, 64)
    good = torch.zeros(4, 4)
    good[0, 0] = 1.0
    right, wrong = (faithfulness.compute_curves(Corner(), images, 0, heatmap) for heatmap in (good, -good))
    assert right.insertion_area > 0.9 > 0.2 > wrong.insertion_area
    assert right.deletion_area < 0.2 < 0.9 < wrong.deletion_area
    assert right.insertion[-1] == pytest.approx(right.deletion[0].item(), abs=1e-5)
    assert set(faithfulness.evaluate_heatmaps(Corner(), images, 0, {"good": good})) == {"good", "edges", "chance"}


def test_the_edge_map_is_high_where_the_image_changes() -> None:
    images = torch.zeros(1, 3, 32, 32)
    images[..., 18:] = 1.0
    found = faithfulness.edge_map(images, (4, 4))
    assert (found.argmax(dim=1) == 2).all()
    assert found[:, 0].max() == 0.0
