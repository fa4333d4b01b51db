"""Weights put into a model that differs: what is adapted is told, what cannot be is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import fill
from vitrail import create_model, save_weights
from vitrail.errors import UnknownNameError, WeightsError
from vitrail.weights import hub
from vitrail.weights.safe import read_tensors, write_tensors

NAME = "vit_mu_patch16_224"


@pytest.fixture
def source(tmp_path: Path):
    model = fill(create_model(NAME, num_classes=12)).eval()
    save_weights(model, tmp_path / "w.safetensors")
    return model, tmp_path / "w.safetensors"


def test_as_it_is(source) -> None:
    model, path = source
    loaded = create_model(NAME, weights=path).eval()
    assert loaded.changes == ("12 classes, as in the file",)
    image = torch.randn(1, 3, 224, 224)
    assert torch.equal(loaded(image), model(image))
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in loaded.parameters())


def test_the_file_may_go_once_it_is_loaded(source) -> None:
    model, path = source
    loaded = create_model(NAME, weights=path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(loaded.pos_embed, model.pos_embed)


def test_another_number_of_classes_gets_a_zero_head(source) -> None:
    _, path = source
    loaded = create_model(NAME, weights=path, num_classes=3).eval()
    assert loaded.changes == ("a new classifier of zeros for 3 classes, the file had 12",)
    assert torch.equal(loaded(torch.randn(1, 3, 224, 224)), torch.zeros(1, 3))


def test_no_classes_gives_features(source) -> None:
    model, path = source
    loaded = create_model(NAME, weights=path, num_classes=0).eval()
    assert loaded.changes == ("the classifier of 12 classes left out",)
    image = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(loaded(image), model.pool(model.encode(model.tokenize(image))))


def test_channels_positions_and_classes_at_once(source) -> None:
    _, path = source
    loaded = create_model(NAME, weights=path, channels=1, image_size=(160, 288), num_classes=3, resize_rule="zoom")
    assert loaded.changes == (
        "input channels 3 to 1, by the sum rule",
        "positions 14 x 14 to 10 x 18, by the zoom rule",
        "a new classifier of zeros for 3 classes, the file had 12",
    )


def test_grey_pictures_give_the_features_of_grey_rgb(source) -> None:
    model, path = source
    grey = create_model(NAME, weights=path, channels=1).eval()
    image = torch.randn(1, 1, 224, 224)
    with torch.no_grad():
        assert torch.allclose(grey(image), model(image.expand(-1, 3, -1, -1)), atol=1e-5)


def test_rules_have_names(source) -> None:
    _, path = source
    with pytest.raises(UnknownNameError, match=r"no resize rule(.|\n)*bicubic"):
        create_model(NAME, weights=path, image_size=96, resize_rule="bilinear")
    with pytest.raises(UnknownNameError, match=r"no channel rule(.|\n)*sum"):
        create_model(NAME, weights=path, channels=1, channel_rule="first")


def test_half_precision_files_are_widened(source, tmp_path: Path) -> None:
    _, path = source
    write_tensors({k: t.half() for k, t in read_tensors(path).items()}, tmp_path / "half.safetensors")
    loaded = create_model(NAME, weights=tmp_path / "half.safetensors", num_classes=12)
    assert loaded.changes == ("torch.float16 to torch.float32",)
    assert loaded.norm.weight.dtype == torch.float32


def test_pre_logits_stay_unless_the_classes_change(tmp_path: Path) -> None:
    model = fill(create_model(NAME, pre_logits=24)).eval()
    save_weights(model, tmp_path / "w.npz", to="google")
    loaded = create_model(NAME, weights=tmp_path / "w.npz").eval()
    image = torch.randn(1, 3, 224, 224)
    assert torch.equal(loaded(image), model(image))
    assert loaded.changes == ("the pre_logits layer kept, as in the file",)
    tuned = create_model(NAME, weights=tmp_path / "w.npz", num_classes=3)
    assert "the pre_logits layer left out, as the paper does for fine-tuning" in tuned.changes
    assert tuned.head.in_features == 32


def test_another_architecture_is_refused(source) -> None:
    _, path = source
    with pytest.raises(WeightsError, match=r"not those of vit_tiny_patch16_224") as caught:
        create_model("vit_tiny_patch16_224", weights=path)
    assert "missing" in str(caught.value)
    with pytest.raises(WeightsError, match=r"not those of resnetv2_50x1_bit"):
        create_model("resnetv2_50x1_bit", weights=path)


def test_other_prefix_tokens_are_another_model(source) -> None:
    _, path = source
    with pytest.raises(WeightsError, match=r"1 missing \(reg_token\)"):
        create_model(NAME, weights=path, registers=4)


def test_a_path_that_leads_nowhere() -> None:
    for path in ("nowhere.safetensors", Path("nowhere"), "a/b/c", "", "notes.md", "model"):
        with pytest.raises(WeightsError, match=r"there is no file"):
            create_model(NAME, weights=path)


def test_offline_says_what_to_download_and_where_to_put_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError) as caught:
        create_model("deit_tiny_patch16_224", weights="deit_tiny_patch16_224.fb_in1k")
    message = str(caught.value)
    assert "timm/deit_tiny_patch16_224.fb_in1k/resolve/main/model.safetensors" in message
    assert "models--timm--deit_tiny_patch16_224.fb_in1k" in message
    assert str(tmp_path) in message


def test_the_hubs_cache_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source) -> None:
    """A file in the cache, laid out as huggingface_hub does it, is found offline, with the config beside it."""
    from huggingface_hub import constants

    model, path = source
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    snapshot = tmp_path / "cache" / "models--someone--mu" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(path.read_bytes())
    refs = tmp_path / "cache" / "models--someone--mu" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    assert hub.fetch("someone/mu") == snapshot / "model.safetensors"
    loaded = create_model(NAME, weights="someone/mu")
    assert torch.equal(loaded.pos_embed, model.pos_embed)


@pytest.mark.data
def test_real_weights(deit_tiny: Path) -> None:
    assert create_model("deit_tiny_patch16_224", weights=deit_tiny).changes == ()
