"""Images are explained for every kind of model and every form of input, or rejected with one clear message."""

from __future__ import annotations

import base64
import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import fill
from tests.contract.small_models import METHODS, RESNETS, SMALL, foreign, random_image, small
from vitrail import create_model, explain, save_weights
from vitrail.calibration import Calibration
from vitrail.errors import DataError, InspectionError, UnknownNameError, WeightsError
from vitrail.inspection import page
from vitrail.inspection.adopt import adopt
from vitrail.inspection.drawing import save_figure
from vitrail.run.open import open_model


@pytest.mark.parametrize("kind", [*SMALL, "bfloat16", "timm", "timm's dinov3", "transformers"])
def test_every_kind_of_model_is_explained(kind: str) -> None:
    model = small("registers").bfloat16() if kind == "bfloat16" else small(kind) if kind in SMALL else foreign(kind)
    found = explain(model, random_image())
    assert set(found.heatmaps) == set(METHODS)
    rows, columns = found.model.spec.layout.grid
    for maps in found.heatmaps.values():
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


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("class token", "every token attends to all tokens,"),
        ("local", "every patch attends to the 5 x 5 patches around it,"),
        ("axial", "every patch attends to the patches of its row, then of its column,"),
    ],
)
def test_the_page_says_what_a_patch_attends_to(kind: str, words: str) -> None:
    assert words in explain(small(kind), random_image()).page()


def test_timms_dinov3_is_adopted_with_its_positions() -> None:
    model = foreign("timm's dinov3")
    spec = adopt(model).spec
    assert (spec.position, spec.mlp, spec.qkv_bias, spec.pool) == ("rotary_2d", "swiglu", "qv", "mean")
    model.rope = torch.nn.Identity()
    with pytest.raises(InspectionError, match="architecture is not supported"):
        adopt(model)


@pytest.mark.parametrize("kind", ["timm", "transformers"])
def test_a_model_with_a_modified_forward_pass_is_rejected(kind: str) -> None:
    model = foreign(kind)
    (model.blocks[0] if kind == "timm" else model.vit.layernorm).register_forward_hook(lambda *args: args[2] * 2)
    with pytest.raises(InspectionError, match="outputs differ from those of a Vision Transformer"):
        explain(model, random_image())


def test_anything_but_a_supported_model_is_rejected() -> None:
    with pytest.raises(InspectionError, match="is not a model"):
        explain("vit", random_image())
    with pytest.raises(InspectionError, match="architecture is not supported"):
        explain(torch.nn.Linear(2, 2), random_image())


def test_bit_has_no_attention_but_gradcam_works() -> None:
    model = fill(create_model("resnetv2_50x1_bit", num_classes=4), 0.05).eval()
    with pytest.raises(InspectionError, match=r"no attention to show.*\n.*\n.*gradcam, which works for this model"):
        explain(model, random_image())
    with pytest.raises(InspectionError, match="gradcam"):
        explain(model, random_image(), methods=["rollout"])
    found = explain(model, random_image(), methods=["gradcam"])
    assert found.heatmaps["gradcam"].shape == (4, 7, 7)
    assert 'data-view="attention"' not in found.page()


@pytest.mark.parametrize("kind", RESNETS)
def test_resnets_are_explained_by_gradcam(kind: str) -> None:
    """Also those with attention: it is between the cells of maps of different sizes, which no page shows."""
    model = small(kind)
    with pytest.raises(InspectionError, match=r"no attention to show.*\n.*\n.*gradcam, which works for this model"):
        explain(model, random_image())
    maps = explain(model, random_image(), methods=["gradcam"]).heatmaps["gradcam"]
    assert maps.shape == (5, *model.spec.layout.grid)
    assert maps.max() > 0


def test_the_training_mode_of_a_model_is_restored() -> None:
    model = small("class token").train()
    explain(model, random_image())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_compiled_model_is_explained() -> None:
    model, image = small("class token"), random_image()
    compiled = torch.compile(model, backend="eager")
    assert explain(compiled, image).probabilities == explain(model, image).probabilities


def test_the_window_is_what_the_model_sees(tmp_path: Path) -> None:
    """Also for an image with an EXIF rotation: its window is that of the upright one."""
    model = small("class token")
    Image.fromarray(random_image(200, 300)).save(tmp_path / "rotated.jpg", exif=_exif_rotated())
    found = explain(model, tmp_path / "rotated.jpg")
    assert found.image.shape == (300, 200, 3)
    top, left, bottom, right = found.window
    rows, columns = found.model.preprocess.resize_size(300, 200)
    assert (bottom - top) * rows == pytest.approx(224)
    assert (right - left) * columns == pytest.approx(224)
    assert top + bottom == pytest.approx(1.0, abs=0.01)
    squashed = found.model.preprocess.override({"size": (160, 288), "resize": "squash", "crop": 1.0})
    assert squashed.window(300, 200) == (0.0, 0.0, 1.0, 1.0)


def _exif_rotated() -> Any:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_the_form_of_the_input_makes_no_difference(tmp_path: Path) -> None:
    model = small("class token")
    Image.fromarray(random_image(200, 300)).save(tmp_path / "rotated.png", exif=_exif_rotated())
    path = tmp_path / "rotated.png"
    with Image.open(path) as image:
        image.load()
        forms = [path, str(path), path.read_bytes(), image, np.rot90(random_image(200, 300), -1).copy()]
    maps = [explain(model, form, methods=["relevance"]).heatmaps["relevance"] for form in forms]
    assert all(np.allclose(maps[0], each) for each in maps[1:])


def test_multi_label_probabilities_are_independent() -> None:
    model = small("class token")
    model.calibration = Calibration(multi_label=True)
    found = explain(model, random_image())
    with torch.no_grad():
        assert found.probabilities[0] == pytest.approx(model(found.inputs).sigmoid().max().item(), abs=1e-6)
    assert "sigmoid" in found.page()


def test_preprocessing_is_the_same_as_in_every_other_command(tmp_path: Path) -> None:
    """Transparency over the model's background, grey for a grey model, large images downscaled while decoding."""
    Image.fromarray(np.dstack([random_image(), random_image(seed=1)[:, :, 0]])).save(tmp_path / "transparent.png")
    Image.fromarray(random_image(900, 1400)).save(tmp_path / "large.jpg")
    for name in ("transparent.png", "large.jpg"):
        for fields in ({}, {"channels": 1}):
            model = fill(create_model("vit_mu_patch16_224", num_classes=5, **fields), 0.1).eval()
            model.preprocess = model.preprocess.override({"background": (0, 0, 0)})
            pixels = model.preprocess.resize_and_crop(model.preprocess.decode((tmp_path / name).read_bytes()))
            found = explain(model, tmp_path / name, methods=["gradcam"])
            assert torch.equal(found.inputs, model.preprocess.normalise(pixels[None]))
            assert "data:image" in found.page()


def test_attention_and_page_are_the_same_each_time() -> None:
    """A model in training mode applies dropout; its explanations do not."""
    model = fill(create_model("vit_mu_patch16_224", num_classes=5, dropout_rate=0.5), 0.1).train()
    found = explain(model, random_image())
    first, second = (list(found.attention()) for _ in range(2))
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))
    assert found.page() == found.page()
    assert model.training


def test_models_that_cannot_be_explained() -> None:
    with pytest.raises(InspectionError, match="no classifier"):
        explain(fill(create_model("vit_mu_patch16_224", num_classes=0)), random_image())
    with pytest.raises(InspectionError, match="does not take images"):
        explain(fill(create_model("vit_mu_patch16_224", num_classes=3, channels=4)), random_image())
    with pytest.raises(InspectionError, match="no pixels"):
        explain(small("class token"), np.zeros((0, 4, 3), dtype=np.uint8))
    assert set(explain(small("class token"), random_image(), methods=[]).heatmaps) == set(METHODS)


def test_bad_images_and_classes(tmp_path: Path) -> None:
    model = small("class token")
    Image.fromarray(random_image()).save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:900])
    with pytest.raises(DataError, match=r"cut\.jpg"):
        explain(model, tmp_path / "cut.jpg")
    with pytest.raises(InspectionError, match="cannot be read"):
        explain(model, tmp_path / "nowhere.jpg")
    with pytest.raises(UnknownNameError, match="class 99"):
        explain(model, tmp_path / "whole.jpg", classes="class 99")
    model.labels = tuple("abcdefghij")
    top = explain(model, tmp_path / "whole.jpg", top=1).labels[0]
    found = explain(model, tmp_path / "whole.jpg", classes=["C", 4, top.upper()])
    assert found.labels == tuple(dict.fromkeys(["c", "e", top]))
    assert found.heatmaps["relevance"].shape[0] == len(found.labels)
    assert found.prediction == (top, max(found.probabilities))
    assert f"whole.jpg: {top}," in found.page()
    model.labels = tuple("1234567890")
    assert explain(model, tmp_path / "whole.jpg", classes="1").classes[0] == 0
    assert explain(model, tmp_path / "whole.jpg", classes=1).classes[0] == 1
    with pytest.raises(UnknownNameError, match="a number from 0 to 9"):
        explain(model, tmp_path / "whole.jpg", classes=10)
    model.labels = ("Pembroke Welsh Corgi", "Cardigan Welsh Corgi", "corn", *"defghij")
    with pytest.raises(UnknownNameError, match="Try Pembroke Welsh Corgi, Cardigan Welsh Corgi"):
        explain(model, tmp_path / "whole.jpg", classes="corgi")
    with pytest.raises(InspectionError, match="this is not an image"):
        explain(model, [tmp_path / "whole.jpg"])


@pytest.mark.parametrize("size", [(3, 900), (900, 3)])
def test_unusual_images_and_labels_are_drawn(size: tuple[int, int]) -> None:
    """Labels come from folder names: formulas, other alphabets, line breaks. Images may be strips."""
    model = small("class token")
    model.labels = tuple(f"$\\frac{{$ 犬 a\nb {number}" for number in range(10))
    found = explain(model, random_image(*size), top=10)
    file = io.BytesIO()
    save_figure(found.figure(), file, "png", 60)
    file.seek(0)
    with Image.open(file) as image:
        assert max(image.size) < 3000
    assert len(found.page()) < 3_000_000


def test_ambiguous_weights_are_rejected(tmp_path: Path) -> None:
    """A DeiT has the shapes of a ViT but another preprocessing: its name, or a name in the path, is needed."""
    save_weights(fill(create_model("deit_tiny_patch16_224", depth=12)), tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"more than one model[\s\S]*deit_tiny_patch16_224 with --weights"):
        open_model(tmp_path / "model.safetensors")
    (tmp_path / "deit_tiny_patch16_224").mkdir()
    named = tmp_path / "deit_tiny_patch16_224" / "model.safetensors"
    (tmp_path / "model.safetensors").rename(named)
    assert open_model(named).preprocess.mean[0] == pytest.approx(0.485)


@pytest.mark.parametrize("budget", [60_000, 20_000])
def test_attention_is_reduced_to_fit_the_page(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("registers")
    found = explain(model, random_image(), methods=["rollout"])
    full = page.page_data(found)["attention"]
    monkeypatch.setattr(page, "MAX_ATTENTION", budget)
    reduced = page.page_data(found)["attention"]
    assert len(reduced["levels"]) < 1.2 * budget < len(full["levels"])
    assert (full["pooled"], full["shades"]) == (1, 255)
    assert reduced["shades"] < 255 or reduced["pooled"] > 1
    side = -(-14 // reduced["pooled"])
    assert len(zlib.decompress(base64.b64decode(reduced["levels"]))) == 2 * model.spec.heads * 201 * side**2


def test_a_token_with_most_of_the_attention_leaves_shades_for_the_others() -> None:
    """Registers and class tokens may take nearly everything; the rest is scaled by its own maximum."""
    model = small("registers")
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.bias.zero_()
        model.reg_token.mul_(100)
    found = explain(model, random_image(), methods=["rollout"])
    data = page.page_data(found)["attention"]
    levels = np.frombuffer(zlib.decompress(base64.b64decode(data["levels"])), dtype=np.uint8).reshape(2, -1, 201, 196)
    assert (levels.max(axis=-1) == 255).all()
    prefixes = np.frombuffer(zlib.decompress(base64.b64decode(data["prefixes"])), dtype="<u2").reshape(2, -1, 201, 5)
    for layer, weights in enumerate(found.attention()):
        assert np.allclose(prefixes[layer] / 65535, weights[..., :5], atol=1e-4)
