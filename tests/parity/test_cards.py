"""A run's model card says that timm and transformers load it exactly if they do, with the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import fill
from tests.parity.conftest import timm, transformers
from vitrail import create_model
from vitrail.calibration import Calibration
from vitrail.run.artefact import write_artefact
from vitrail.run.card import model_card

SMALL_VIT = {"width": 32, "depth": 1, "heads": 2, "hidden": 64}
LOADABLE = {
    "vit": ("vit_mu_patch8_16", {}),
    "vit of another size": ("vit_tiny_patch16_224", {"image_size": 32, **SMALL_VIT}),
    "distilled": ("deit_mu_distilled_patch8_16", {}),
    "made distilled": ("vit_tiny_patch16_224", {"image_size": 32, "distilled": True, **SMALL_VIT}),
    "no longer distilled": ("deit_tiny_distilled_patch16_224", {"image_size": 32, "distilled": False, **SMALL_VIT}),
    "hybrid": ("vit_tiny_r_s16_p8_224", {"depth": 1}),
    "odd-sized hybrid": ("vit_mu_r_s16_p8_64", {}),
    "hybrid with another patch of timm's": ("vit_mu_r26_s32_64", {}),
    "bit": ("resnetv2_50x1_bit", {"image_size": 32}),
    "bit with the layers of another": ("resnetv2_50x1_bit", {"image_size": 32, "layers": [3, 4, 23, 3]}),
}
NOT_LOADABLE = {
    "hybrid with other layers": ("vit_mu_r26_s32_64", {"stem": {"name": "hybrid", "layers": [1, 1]}}),
    "hybrid with another patch": ("vit_mu_r_s16_p8_64", {"stem": {"name": "hybrid", "layers": [], "patch": 4}}),
    "bit with other layers": ("resnetv2_50x1_bit", {"image_size": 32, "layers": [1, 1, 1, 1]}),
    "bit of another width": ("resnetv2_50x2_bit", {"image_size": 32, "layers": [1, 1, 1, 1]}),
    "conv": ("vit_nano_conv4_32", {"depth": 1}),
    "linear": ("linear_8", {}),
    "resnet that timm knows by name only": ("resnet26", {"image_size": 32}),
    "resnet with attention": ("resnet26_sasa_32", {"layers": [1, 1]}),
    "distilled with registers": ("deit_mu_distilled_patch8_16", {"registers": 2}),
    "distilled without positions": ("deit_mu_distilled_patch8_16", {"position": "none"}),
    "position of the class token only": ("vit_mu_patch8_16", {"registers": 2, "position_prefix": 1}),
    "dinov3, which timm names differently": ("vit_mu_patch8_dinov3", {"image_size": 16}),
    "fixed positions": ("vit_mu_patch8_16", {"position": "sincos_2d"}),
}
CLAIM = 'timm (`create_model("local-dir:RUN", pretrained=True)`) and transformers'


def write_run(name: str, fields: dict[str, Any], path: Path) -> Any:
    """Write the finished files of a model, as training does."""
    path.mkdir()
    model = fill(create_model(name, **{"num_classes": 3, **fields})).eval()
    if fields.get("position_prefix") == 1:
        model.pos_embed.data[:, 0] = 0.0  # timm could load these weights, but not as the run stores them
    words = dict.fromkeys(("title", "model", "story", "command", "machine"), "")
    facts = {**words, "classes": 3, "num_train": 0, "multi_label": False, "versions": {"torch": ""}}
    model.labels = ("a", "b", "c")
    result = {"steps": 0, "seconds": 0.0, "recipe": "scratch"}
    write_artefact(
        path,
        model,
        golden=torch.zeros(1, *model.spec.image_size, 3, dtype=torch.uint8),
        card=lambda opens: model_card(
            facts=facts, result=result, summaries={}, loadable_by=opens, calibration=Calibration()
        ),
    )
    return model


@pytest.mark.parametrize("kind", LOADABLE)
def test_what_the_card_claims_is_true(kind: str, tmp_path: Path) -> None:
    ours = write_run(*LOADABLE[kind], tmp_path / "run")
    assert CLAIM in (tmp_path / "run" / "README.md").read_text()
    image = torch.randn(2, 3, *ours.spec.image_size)
    with torch.inference_mode():
        expected = ours(image)
        theirs = timm.create_model(f"local-dir:{tmp_path / 'run'}", pretrained=True).eval()
        assert (theirs(image) - expected).abs().max() < 1e-4
        wrapped = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "run").eval()
        assert (wrapped(pixel_values=image).logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize("kind", NOT_LOADABLE)
def test_nothing_is_claimed_that_timm_does_not_load(kind: str, tmp_path: Path) -> None:
    write_run(*NOT_LOADABLE[kind], tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    assert CLAIM not in card
    assert "Neither timm nor transformers loads this folder as it is" in card
