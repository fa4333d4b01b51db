"""A picture is explained: for every kind of model, in whatever form it comes, or with one clear message."""

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
from tests.contract.small_models import METHODS, SMALL, foreign, picture, small
from vitrail import create_model, explain, save_weights
from vitrail.errors import DataError, InspectionError, UnknownNameError, WeightsError
from vitrail.inspection import page
from vitrail.inspection.drawing import save_figure
from vitrail.run.calibrate import Calibration
from vitrail.run.open import open_model


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
    model.calibration = Calibration(multi_label=True)
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
    assert found.answer == (likeliest, max(found.probabilities))
    assert f"whole.jpg: {likeliest}," in found.page()
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
