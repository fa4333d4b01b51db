"""A run's directory opens in timm and in transformers as it is, with the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitrail import load
from vitrail.verbs.train import train

WORDS = ["steps=2", "batch_size=8", "precision=float32"]


@pytest.fixture(scope="module", params=["vit_mu_patch4_16", "vit_mu_patch4_gap_16", "deit_mu_distilled_patch4_16"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    train("digits", model=request.param, recipe="scratch", run=path, settings=WORDS)
    return path


def test_timm_opens_it(run: Path) -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model(f"local-dir:{run}", pretrained=True).eval()
    ours, images = load(run), torch.randn(3, 3, 16, 16)
    with torch.inference_mode():
        assert (theirs(images) - ours(images)).abs().max() < 1e-5
    assert tuple(theirs.pretrained_cfg["mean"]) == ours.preprocess.mean


def test_transformers_opens_it(run: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(run).eval()
    ours, images = load(run), torch.randn(3, 3, 16, 16)
    with torch.inference_mode():
        assert (theirs(pixel_values=images).logits - ours(images)).abs().max() < 1e-5
    assert [theirs.config.id2label[number] for number in range(10)] == list(ours.labels)


def test_timm_opens_a_pretrained_one(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    train("digits", model="vit_mu_patch4_16", recipe="pretrain", run=tmp_path / "run", settings=WORDS)
    theirs = timm.create_model(f"local-dir:{tmp_path / 'run'}", pretrained=True).eval()
    ours, images = load(tmp_path / "run"), torch.randn(3, 3, 16, 16)
    with torch.inference_mode():
        assert (theirs(images) - ours(images)).abs().max() < 1e-5
