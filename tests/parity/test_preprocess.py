"""The preprocessing in timm's and transformers' formats: each reads the other's files, and pixels agree."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from transformers import AutoImageProcessor, ViTImageProcessor

from tests.conftest import fill
from vitrail import convert, create_model, save_weights
from vitrail.data.exchange import from_hf, from_timm, to_hf, to_timm
from vitrail.data.transform import Preprocess
from vitrail.errors import SpecError

SPECS = {
    "deit": Preprocess(size=(224, 224), crop=0.9, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    "vit": Preprocess(size=(224, 224), resize="squash", kernel="bilinear"),
    "384": Preprocess(size=(384, 384), crop=1.0),
    "bit": Preprocess(size=(160, 160), crop=0.875, kernel="bilinear"),
    "squash and crop": Preprocess(size=(224, 224), resize="squash", crop=0.875),
    "siglip": Preprocess(size=(256, 256), crop=0.95, kernel="lanczos"),
}


def photo() -> Image.Image:
    random = np.random.default_rng(0)
    return Image.fromarray(random.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((301, 222), 3)


def gap(ours: torch.Tensor, theirs: torch.Tensor, spec: Preprocess) -> float:
    """The mean difference in levels of 255."""
    return float((ours - theirs).abs().mean()) * 255 * float(np.mean(spec.std))


@pytest.mark.parametrize("kind", SPECS)
def test_round_trip(kind: str) -> None:
    spec = SPECS[kind]
    assert from_timm(json.loads(json.dumps(to_timm(spec)))) == spec
    back = from_hf(json.loads(json.dumps(to_hf(spec))))
    assert back.crop == pytest.approx(spec.crop, abs=1e-2)  # transformers stores the size before the crop
    assert back.override({"crop": spec.crop}) == spec
    assert back.resize_size(300, 401) == spec.resize_size(300, 401)


@pytest.mark.parametrize("kind", SPECS)
def test_timm_prepares_the_same_pixels(kind: str) -> None:
    config = to_timm(SPECS[kind])
    transform = timm.data.create_transform(
        **{key: value for key, value in config.items() if key != "input_size"}, input_size=tuple(config["input_size"])
    )
    assert gap(SPECS[kind](photo()), transform(photo()), SPECS[kind]) < 0.05


@pytest.mark.parametrize("kind", SPECS)
def test_transformers_prepares_the_same_pixels(kind: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(to_hf(SPECS[kind])))
    theirs = AutoImageProcessor.from_pretrained(tmp_path)(photo(), return_tensors="pt")["pixel_values"][0]
    assert gap(SPECS[kind](photo()), theirs, SPECS[kind]) < (0.05 if SPECS[kind].kernel != "lanczos" else 0.5)


def test_their_own_file_is_read(tmp_path: Path) -> None:
    ViTImageProcessor(size={"height": 160, "width": 160}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path)
    spec = from_hf(json.loads((tmp_path / "preprocessor_config.json").read_text()))
    assert (spec.size, spec.resize, spec.kernel, spec.mean) == ((160, 160), "squash", "bilinear", (0.1, 0.2, 0.3))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"feature_extractor_type": "ViTFeatureExtractor", "size": 224}, {"resize": "squash", "size": (224, 224)}),
        ({"size": 256, "crop_size": 224, "do_center_crop": True, "resample": 3}, {"resize": "cover", "crop": 0.875}),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, {"crop": 0.875}),
        ({"size": {"height": 256, "width": 256}, "crop_size": 224, "do_center_crop": True}, {"resize": "squash"}),
        ({"size": 224, "do_normalize": False}, {"mean": (0, 0, 0), "std": (1, 1, 1)}),
    ],
)
def test_files_of_old_versions_are_read(config: dict, expected: dict) -> None:
    spec = from_hf(config)
    assert {key: getattr(spec, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("read", "config", "message"),
    [
        (from_timm, {"crop_mode": "border"}, "crop mode"),
        (from_timm, {"interpolation": "random"}, "kernel"),
        (from_hf, {"do_resize": False}, "not supported"),
        (from_hf, {"rescale_factor": 1.0}, "not supported"),
        (from_hf, {"size": {"height": -1, "width": 3}}, "no usable size"),
        (from_hf, {"size": "big"}, "no usable size"),
        (from_hf, {"size": 224, "image_mean": ["a"]}, "mean"),
    ],
)
def test_unsupported_configs_are_refused(read, config: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(config)


def test_unsupported_preprocessing_is_refused() -> None:
    with pytest.raises(SpecError, match="not square"):
        to_hf(Preprocess(size=(160, 288)))
    with pytest.raises(SpecError, match="three channels"):
        to_hf(Preprocess(mode="grey", mean=(0.5,), std=(0.5,)))


@pytest.mark.parametrize("form", ["timm", "hf"])
def test_it_is_saved_with_the_weights(form: str, tmp_path: Path) -> None:
    """Saved with a model, read with it, and converted with it; the name alone would say something else."""
    model = fill(create_model("vit_mu_patch16_224", num_classes=3))
    model.preprocess = SPECS["bit"].override({"size": 224})
    save_weights(model, tmp_path / "a", to=form)
    assert create_model("vit_mu_patch16_224", weights=tmp_path / "a").preprocess == model.preprocess
    other = {"timm": "hf", "hf": "timm"}[form]
    convert(tmp_path / "a", to=other, out=tmp_path / "b", model="vit_mu_patch16_224")
    assert create_model("vit_mu_patch16_224", weights=tmp_path / "b").preprocess == model.preprocess
    changed = create_model("vit_mu_patch16_224", weights=tmp_path / "b", image_size=(96, 160), channels=1)
    assert (changed.preprocess.size, changed.preprocess.mode, changed.preprocess.mean) == ((96, 160), "grey", (0.5,))


def test_the_config_of_another_model_is_ignored(tmp_path: Path) -> None:
    """Google's npz never has a config.json; one that lies beside it is another model's."""
    model = fill(create_model("vit_mu_patch16_224"))
    save_weights(model, tmp_path / "a.npz", to="google")
    config = {"architecture": "other", "pretrained_cfg": to_timm(SPECS["bit"])}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = create_model("vit_mu_patch16_224", weights=tmp_path / "a.npz")
    assert loaded.preprocess == model.preprocess
    assert not any("prepared" in change for change in loaded.changes)
    save_weights(model, tmp_path / "b.safetensors")
    from_file = create_model("vit_mu_patch16_224", weights=tmp_path / "b.safetensors")
    assert from_file.preprocess.kernel == "bilinear"
    assert any("preprocessing from the file" in change for change in from_file.changes)


def test_the_default_preprocessing_is_not_reported(tmp_path: Path) -> None:
    save_weights(fill(create_model("vit_mu_patch16_224")), tmp_path / "a", to="hf")
    loaded = create_model("vit_mu_patch16_224", weights=tmp_path / "a")
    assert (loaded.changes, loaded.preprocess.crop) == ((), 0.9)


def test_transformers_classifies_with_our_folder(tmp_path: Path) -> None:
    from transformers import pipeline

    model = fill(create_model("vit_mu_patch16_224", num_classes=3)).eval()
    save_weights(model, tmp_path / "a", to="hf")
    answers = pipeline("image-classification", model=str(tmp_path / "a"))(photo())
    with torch.inference_mode():
        ours = model(model.preprocess(photo())[None]).softmax(1)[0]
    for answer in answers:
        assert answer["score"] == pytest.approx(ours[int(answer["label"].removeprefix("LABEL_"))].item(), abs=2e-3)
