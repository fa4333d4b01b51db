"""What is shown of a model is true: tied to the fused kernel, to numbers worked out by hand, and to closed forms."""

from __future__ import annotations

import base64
import io
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.conftest import fill
from vitrail import create_model, explain, plug, save_weights
from vitrail.errors import DataError, InspectionError, UnknownNameError, WeightsError
from vitrail.inspection import faithfulness, page, trace
from vitrail.inspection.distance import entropy, mean_distance
from vitrail.inspection.drawn import save_figure
from vitrail.inspection.embedding import filters, position_similarity, principal_components, token_colours
from vitrail.inspection.method.rollout import roll_out
from vitrail.inspection.receptive import radius, receptive_fields
from vitrail.run.opened import open_model
from vitrail.tokens import Layout, Tokens

ATTENTIONS = plug.entries("vitrail.nn.attention")
METHODS = plug.entries("vitrail.inspection.method")
SMALL: dict[str, dict[str, Any]] = {
    "class token": {"name": "vit_mu_patch16_224"},
    "mean pooling": {"name": "vit_mu_patch16_gap_224"},
    "distilled": {"name": "deit_mu_distilled_patch16_224"},
    "registers": {"name": "vit_mu_patch16_reg4_224"},
    "attention pooling": {"name": "vit_mu_patch16_siglip_224", "num_classes": 10},
    "hybrid": {"name": "vit_mu_r_s16_p8_224"},
    "convolutional stem": {"name": "vit_mu_conv16_128"},
    "384 px": {"name": "vit_mu_patch16_384"},
    "160 x 288 px": {"name": "vit_mu_patch16_224", "image_size": (160, 288)},
}


def small(kind: str) -> Any:
    return fill(create_model(**{"num_classes": 10, **SMALL[kind]}), 0.1).eval()


def foreign(kind: str) -> Any:
    from tests.parity.conftest import timm, transformers

    if kind == "timm":
        return fill(timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10), 0.1)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
    return fill(transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, num_labels=10)), 0.1)


def picture(rows: int = 200, columns: int = 300, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_weights_times_values_are_what_the_kernel_computes(name: str) -> None:
    attention = fill(plug.load("vitrail.nn.attention", name).Attention(width=32, heads=4), 0.3).eval()
    tokens = Tokens(torch.randn(2, 21, 32), Layout((4, 5), 1))
    _, _, values = attention.split(tokens)
    weights = attention.weights(tokens)
    assert torch.allclose(attention.merge(weights @ values), attention(tokens), atol=1e-5)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(2, 4, 21), atol=1e-6)
    rows = torch.tensor([0, 7, 20])
    assert torch.allclose(attention.weights(tokens, rows), weights[:, :, rows], atol=1e-6)


@pytest.mark.parametrize("kind", SMALL)
def test_the_trace_is_the_forward_pass(kind: str) -> None:
    model = small(kind)
    images = torch.randn(2, 3, *model.spec.image_size)
    with torch.no_grad():
        assert torch.allclose(trace.trace(model, images).logits, model(images), atol=1e-5)
        layers = list(trace.attention(model, images))
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


def test_distances_are_told_in_pixels_of_oblong_cells() -> None:
    layout = Layout((2, 1))
    swapped = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])
    assert mean_distance(swapped, layout, (10, 99)).item() == 10.0


@pytest.mark.parametrize(("class_token", "registers", "num"), [(False, 0, 841), (False, 4, 845), (True, 4, 846)])
def test_registers_never_shift_the_map(class_token: bool, registers: int, num: int) -> None:
    """A model that is built to look at bright patches: with any prefix, the map is brightest where the picture is."""
    told = {"class_token": class_token, "registers": registers, "pool": "token" if class_token else "mean"}
    model = create_model("vit_mu_patch14_224", image_size=406, num_classes=3, depth=1, **told).eval()
    assert model.spec.layout.num_tokens == num
    width, (block,) = model.spec.width, model.blocks
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.patch_embed.proj.weight[0] = 1.0  # a patch is as long as it is bright, along the first axis
        block.norm1.weight.fill_(1.0)
        block.attn.qkv.weight[width : 2 * width] = torch.eye(width)  # keys are the tokens,
        block.attn.qkv.bias[0] = 3.0  # and all queries ask for the first axis
    images = torch.zeros(1, 3, 406, 406)
    images[..., 11 * 14 : 12 * 14, 23 * 14 : 24 * 14] = 1.0
    heat = plug.load("vitrail.inspection.method", "rollout").heat(model, images, [0])[0]
    assert divmod(int(heat.argmax()), 29) == (11, 23)
    assert heat[11, 23] > 5 * heat.flatten().sort().values[-2]


@pytest.mark.parametrize("kind", ["class token", "mean pooling", "attention pooling"])
def test_relevance_is_the_gradient_written_out(kind: str) -> None:
    """Against the definition: a forward pass with the matrices in the open, and autograd's gradient of them."""
    model = small(kind)
    images = torch.randn(1, 3, 224, 224)
    tokens = model.tokenize(images)
    matrices: list[Tensor] = []

    def in_the_open(weights: Tensor) -> Tensor:
        weights.retain_grad()
        matrices.append(weights)
        return weights

    for block in model.blocks:
        normed = tokens.with_x(block.norm1(tokens.x))
        _, _, values = block.attn.split(normed)
        z = tokens.x + block.attn.merge(in_the_open(block.attn.weights(normed)) @ values)
        tokens = tokens.with_x(z + block.mlp(block.norm2(z)))
    output = tokens.with_x(model.norm(tokens.x))
    pool = model.attn_pool
    if pool is None:
        logits = model.classify(output)
    else:
        query = pool.query(output)
        read = pool.merge(in_the_open(pool.weights(query, output)) @ pool.split(query, output)[2])
        logits = model.head(model.pre_logits(model.fc_norm((read + pool.mlp(pool.norm(read)))[:, 0])))
    logits[0, 3].backward()
    helpful = [(each * each.grad).clamp_min(0).mean(dim=1)[0].detach() for each in matrices]
    num = output.layout.num_tokens
    flow = torch.eye(num)
    for matrix in helpful[: len(model.blocks)]:
        flow = flow + matrix @ flow
    row = helpful[-1] if pool is not None else trace.readout(model, output) @ (flow - torch.eye(num))
    expected = trace.on_grid(row @ flow if pool is not None else row, output.layout)[0]
    found = plug.load("vitrail.inspection.method", "relevance").heat(model, images, [3])[0]
    assert torch.allclose(found, expected, atol=1e-6 * expected.max().item() + 1e-9)
    assert expected.max() > 0


@pytest.mark.parametrize("kind", [*SMALL, "bfloat16", "timm", "transformers"])
def test_every_kind_of_model_is_explained(kind: str) -> None:
    model = small("registers").bfloat16() if kind == "bfloat16" else small(kind) if kind in SMALL else foreign(kind)
    found = explain(model, picture())
    assert set(found.heat) == set(METHODS)
    rows, columns = found.model.spec.layout.grid
    for maps in found.heat.values():
        assert maps.shape == (5, rows, columns)
        assert np.isfinite(maps).all()
        assert (maps >= 0).all()
    assert sum(found.probabilities) <= 1 + 1e-6
    assert list(found.probabilities) == sorted(found.probabilities, reverse=True)
    layers = list(found.attention())
    assert len(layers) == found.model.spec.depth
    assert "<script>" in found.page()
    assert found._repr_html_().startswith("<iframe")
    assert found.figure().axes


@pytest.mark.parametrize("kind", ["timm", "transformers"])
def test_a_model_that_computes_something_else_is_refused(kind: str) -> None:
    model = foreign(kind)
    (model.blocks[0] if kind == "timm" else model.vit.layernorm).register_forward_hook(lambda *words: words[2] * 2)
    with pytest.raises(InspectionError, match="computes something else"):
        explain(model, picture())


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InspectionError, match="is no model"):
        explain("vit", picture())
    with pytest.raises(InspectionError, match="no kind that Vitrail knows"):
        explain(torch.nn.Linear(2, 2), picture())


def test_bit_is_told_what_works_for_it() -> None:
    model = fill(create_model("resnetv2_50x1_bit", num_classes=4), 0.05).eval()
    with pytest.raises(InspectionError, match=r"no attention to show.*\n.*\n.*gradcam, which works for it"):
        explain(model, picture())
    with pytest.raises(InspectionError, match="gradcam"):
        explain(model, picture(), methods=["rollout"])
    found = explain(model, picture(), methods=["gradcam"])
    assert found.heat["gradcam"].shape == (4, 7, 7)
    assert 'data-view="attention"' not in found.page()


def test_the_training_mode_of_a_model_is_left_as_it_was() -> None:
    model = small("class token").train()
    explain(model, picture())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_overlay_lies_where_the_model_looks(tmp_path: Path) -> None:
    """A picture that is stored turned: its window is that of the upright one."""
    model = small("class token")
    Image.fromarray(picture(200, 300)).save(tmp_path / "turned.jpg", exif=_turned())
    found = explain(model, tmp_path / "turned.jpg")
    assert found.picture.shape == (300, 200, 3)
    top, left, bottom, right = found.window
    rows, columns = found.model.preprocess.target(300, 200)
    assert (bottom - top) * rows == pytest.approx(224)
    assert (right - left) * columns == pytest.approx(224)
    assert top + bottom == pytest.approx(1.0, abs=0.01)
    whole = found.model.preprocess.override({"size": (160, 288), "resize": "squash", "crop": 1.0})
    assert whole.window(300, 200) == (0.0, 0.0, 1.0, 1.0)


def _turned() -> Any:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_a_picture_may_come_in_any_form(tmp_path: Path) -> None:
    model = small("class token")
    Image.fromarray(picture(200, 300)).save(tmp_path / "turned.png", exif=_turned())
    path = tmp_path / "turned.png"
    with Image.open(path) as image:
        image.load()
        forms = [path, str(path), path.read_bytes(), image, np.rot90(picture(200, 300), -1).copy()]
    maps = [explain(model, form, methods=["relevance"]).heat["relevance"] for form in forms]
    assert all(np.allclose(maps[0], each) for each in maps[1:])


def test_of_several_labels_each_has_its_own_probability() -> None:
    model = small("class token")
    model.several = True
    found = explain(model, picture())
    with torch.no_grad():
        assert found.probabilities[0] == pytest.approx(model(found.images).sigmoid().max().item(), abs=1e-6)
    assert "sigmoid" in found.page()


def test_the_input_is_that_of_every_other_command(tmp_path: Path) -> None:
    """Transparency over the model's own background, grey for a grey model, large pictures reduced while decoding."""
    Image.fromarray(np.dstack([picture(), picture(seed=1)[:, :, 0]])).save(tmp_path / "clear.png")
    Image.fromarray(picture(900, 1400)).save(tmp_path / "large.jpg")
    for name in ("clear.png", "large.jpg"):
        for fields in ({}, {"channels": 1}):
            model = fill(create_model("vit_mu_patch16_224", num_classes=5, **fields), 0.1).eval()
            model.preprocess = model.preprocess.override({"background": (0, 0, 0)})
            pixels = model.preprocess.pixels(model.preprocess.decode((tmp_path / name).read_bytes()))
            found = explain(model, tmp_path / name, methods=["gradcam"])
            assert torch.equal(found.images, model.preprocess.normalise(pixels[None]))
            assert "data:image" in found.page()


def test_what_is_shown_later_is_what_was_explained() -> None:
    """A model in training mode drops tokens; explanations of it do not."""
    model = fill(create_model("vit_mu_patch16_224", num_classes=5, dropout_rate=0.5), 0.1).train()
    found = explain(model, picture())
    first, second = (list(found.attention()) for _ in range(2))
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))
    assert found.page() == found.page()
    assert model.training


def test_models_that_cannot_be_explained() -> None:
    with pytest.raises(InspectionError, match="no classifier"):
        explain(fill(create_model("vit_mu_patch16_224", num_classes=0)), picture())
    with pytest.raises(InspectionError, match="no picture that this model takes"):
        explain(fill(create_model("vit_mu_patch16_224", num_classes=3, channels=4)), picture())
    with pytest.raises(InspectionError, match="no pixels"):
        explain(small("class token"), np.zeros((0, 4, 3), dtype=np.uint8))
    assert set(explain(small("class token"), picture(), methods=[]).heat) == set(METHODS)


def test_bad_pictures_and_classes(tmp_path: Path) -> None:
    model = small("class token")
    Image.fromarray(picture()).save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:900])
    with pytest.raises(DataError, match=r"cut\.jpg"):
        explain(model, tmp_path / "cut.jpg")
    with pytest.raises(InspectionError, match="cannot be read"):
        explain(model, tmp_path / "nowhere.jpg")
    with pytest.raises(UnknownNameError, match="class 99"):
        explain(model, tmp_path / "whole.jpg", classes="class 99")
    model.labels = tuple("abcdefghij")
    likeliest = explain(model, tmp_path / "whole.jpg", top=1).labels[0]
    found = explain(model, tmp_path / "whole.jpg", classes=["C", 4, likeliest.upper()])
    assert found.labels == tuple(dict.fromkeys(["c", "e", likeliest]))
    assert found.heat["relevance"].shape[0] == len(found.labels)
    model.labels = tuple("1234567890")
    assert explain(model, tmp_path / "whole.jpg", classes="1").classes[0] == 0
    assert explain(model, tmp_path / "whole.jpg", classes=1).classes[0] == 1
    with pytest.raises(UnknownNameError, match="numbers from 0 to 9"):
        explain(model, tmp_path / "whole.jpg", classes=10)
    model.labels = ("Pembroke Welsh Corgi", "Cardigan Welsh Corgi", "corn", *"defghij")
    with pytest.raises(UnknownNameError, match="Try Pembroke Welsh Corgi, Cardigan Welsh Corgi"):
        explain(model, tmp_path / "whole.jpg", classes="corgi")
    with pytest.raises(InspectionError, match="this is no picture"):
        explain(model, [tmp_path / "whole.jpg"])


def test_principal_components_are_those_of_the_covariance() -> None:
    rows = torch.randn(50, 6) * torch.tensor([5.0, 1.0, 3.0, 0.1, 0.2, 0.3])
    found = principal_components(rows, 3)
    _, vectors = torch.linalg.eigh(torch.cov(rows.T.double()))
    for place in range(3):
        assert abs((found[place].double() @ vectors[:, -1 - place]).item()) == pytest.approx(1.0, abs=1e-5)
        assert found[place][found[place].abs().argmax()] > 0


def test_tables_of_a_model() -> None:
    model = small("160 x 288 px")
    assert filters(model, 5).shape == (5, 16, 16, 3)
    similarity = position_similarity(model)
    assert similarity.shape == (10, 18, 10, 18)
    assert torch.allclose(similarity[3, 4, 3, 4], torch.tensor(1.0))
    with pytest.raises(InspectionError, match="no filters of whole patches"):
        filters(small("convolutional stem"))
    with pytest.raises(InspectionError, match="no filters of whole patches"):
        filters(small("hybrid"))
    colours = token_colours(torch.randn(30, 12))
    assert colours.shape == (30, 3)
    assert colours.min() == 0.0
    assert colours.max() == 1.0


def test_receptive_fields_of_convolutions_grow_and_attention_sees_all() -> None:
    convolutions = fill(create_model("resnetv2_50x1_bit", num_classes=4), 0.05).eval()
    images = torch.randn(1, 3, 224, 224)
    radii = [radius(field) for _, field in receptive_fields(convolutions, images)]
    assert radii == sorted(radii)
    stem, first, *_ = (field for _, field in receptive_fields(small("class token"), images))
    assert (stem > 0).sum() == 16 * 16
    assert (first > 0).float().mean() > 0.99


def test_faithfulness_knows_a_good_map_from_a_bad_one() -> None:
    """A model that looks at one cell: to give it that cell first is best, to give it last is worst."""

    class Corner(torch.nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            score = images[:, :, :16, :16].std(dim=(1, 2, 3)) * 20
            return torch.stack([score, torch.full_like(score, 5.0)], dim=1)

    images = torch.randn(1, 3, 64, 64)
    good = torch.zeros(4, 4)
    good[0, 0] = 1.0
    right, wrong = (faithfulness.curves(Corner(), images, 0, heat) for heat in (good, -good))
    assert right.insertion_area > 0.9 > 0.2 > wrong.insertion_area
    assert right.deletion_area < 0.2 < 0.9 < wrong.deletion_area
    assert right.insertion[-1] == pytest.approx(right.deletion[0].item(), abs=1e-5)
    assert set(faithfulness.judged(Corner(), images, 0, {"good": good})) == {"good", "edges", "chance"}


def test_edges_are_where_a_picture_changes() -> None:
    images = torch.zeros(1, 3, 32, 32)
    images[..., 18:] = 1.0
    found = faithfulness.edges(images, (4, 4))
    assert (found.argmax(dim=1) == 2).all()
    assert found[:, 0].max() == 0.0


@pytest.mark.parametrize("size", [(3, 900), (900, 3)])
def test_strange_pictures_and_labels_are_drawn(size: tuple[int, int]) -> None:
    """Labels come from folders' names: formulas, other alphabets, line ends. Pictures may be strips."""
    model = small("class token")
    model.labels = tuple(f"$\\frac{{$ 犬 a\nb {number}" for number in range(10))
    found = explain(model, picture(*size), top=10)
    file = io.BytesIO()
    save_figure(found.figure(), file, "png", 60)
    file.seek(0)
    with Image.open(file) as image:
        assert max(image.size) < 3000
    assert len(found.page()) < 3_000_000


def test_weights_of_two_kinds_are_not_guessed(tmp_path: Path) -> None:
    """A DeiT has the shapes of a ViT and prepares pictures differently: only its name, or a name in the path, tells."""
    save_weights(fill(create_model("deit_tiny_patch16_224", depth=12)), tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"more than one model[\s\S]*deit_tiny_patch16_224 with --weights"):
        open_model(tmp_path / "model.safetensors")
    (tmp_path / "deit_tiny_patch16_224").mkdir()
    named = tmp_path / "deit_tiny_patch16_224" / "model.safetensors"
    (tmp_path / "model.safetensors").rename(named)
    assert open_model(named).preprocess.mean[0] == pytest.approx(0.485)


@pytest.mark.parametrize("budget", [60_000, 20_000])
def test_a_large_page_is_made_smaller(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("registers")
    found = explain(model, picture(), methods=["rollout"])
    whole = page.page_data(found)["attention"]
    monkeypatch.setattr(page, "BUDGET", budget)
    less = page.page_data(found)["attention"]
    assert len(less["levels"]) < 1.2 * budget < len(whole["levels"])
    assert (whole["pooled"], whole["shades"]) == (1, 255)
    assert less["shades"] < 255 or less["pooled"] > 1
    side = -(-14 // less["pooled"])
    assert len(zlib.decompress(base64.b64decode(less["levels"]))) == 2 * model.spec.heads * 201 * side**2


def test_a_token_that_draws_all_attention_leaves_shades_to_the_others() -> None:
    """Registers and class tokens may take nearly everything; what is left is scaled by its own largest."""
    model = small("registers")
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.bias.zero_()
        model.reg_token.mul_(100)
    found = explain(model, picture(), methods=["rollout"])
    data = page.page_data(found)["attention"]
    levels = np.frombuffer(zlib.decompress(base64.b64decode(data["levels"])), dtype=np.uint8).reshape(2, -1, 201, 196)
    assert (levels.max(axis=-1) == 255).all()
    aside = np.frombuffer(zlib.decompress(base64.b64decode(data["prefixes"])), dtype="<u2").reshape(2, -1, 201, 5)
    for layer, weights in enumerate(found.attention()):
        assert np.allclose(aside[layer] / 65535, weights[..., :5], atol=1e-4)
