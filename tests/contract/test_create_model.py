"""Weights loaded into a model that differs: adaptations are reported, anything else is rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.conftest import fill
from vitrail import create_model, save_weights
from vitrail.catalogue import on_meta
from vitrail.errors import SpecError, UnknownNameError, WeightsError
from vitrail.weights import hub
from vitrail.weights.tensor_files import read_tensors, write_tensors

NAME = "vit_mu_patch16_224"


@pytest.fixture
def source(tmp_path: Path):
    model = fill(create_model(NAME, num_classes=12)).eval()
    save_weights(model, tmp_path / "w.safetensors")
    return model, tmp_path / "w.safetensors"


def test_weights_of_the_same_model_load_unchanged(source) -> None:
    model, path = source
    loaded = create_model(NAME, weights=path).eval()
    assert loaded.changes == ("12 classes, as in the file",)
    image = torch.randn(1, 3, 224, 224)
    assert torch.equal(loaded(image), model(image))
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in loaded.parameters())


def test_only_meta_tensors_are_left_alone_while_building_on_the_meta_device() -> None:
    real = torch.ones(3)
    with on_meta():
        real.mul_(3.0).add_(1.0)
        made = torch.full((2,), 5.0, device="cpu").clamp_(max=2.0)
        torch.nn.init.zeros_(initialised := torch.ones(2, device="cpu"))
        meta = torch.nn.Linear(2, 2)
        torch.nn.init.trunc_normal_(tensor=meta.weight)
    assert real.tolist() == [4.0] * 3
    assert made.tolist() == [2.0] * 2
    assert initialised.tolist() == [0.0] * 2
    assert meta.weight.is_meta


def test_the_file_is_not_needed_after_loading(source) -> None:
    model, path = source
    loaded = create_model(NAME, weights=path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(loaded.pos_embed, model.pos_embed)


def test_another_number_of_classes_gets_a_zero_head(source) -> None:
    _, path = source
    loaded = create_model(NAME, weights=path, num_classes=3).eval()
    assert loaded.changes == ("classifier for 12 classes dropped", "new zero-initialised classifier for 3 classes")
    assert torch.equal(loaded(torch.randn(1, 3, 224, 224)), torch.zeros(1, 3))


def test_no_classes_gives_features(source) -> None:
    model, path = source
    loaded = create_model(NAME, weights=path, num_classes=0).eval()
    assert loaded.changes == ("classifier for 12 classes dropped",)
    image = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(loaded(image), model.pool(model.encode(model.tokenize(image))))


def test_channels_positions_and_classes_at_once(source) -> None:
    _, path = source
    loaded = create_model(NAME, weights=path, channels=1, image_size=(160, 288), num_classes=3, resize_rule="zoom")
    assert loaded.changes == (
        "classifier for 12 classes dropped",
        "input channels: 3 to 1 (sum rule)",
        "position table: 14 x 14 to 10 x 18 (zoom rule)",
        "new zero-initialised classifier for 3 classes",
    )


def test_grey_images_give_the_features_of_grey_rgb(source) -> None:
    model, path = source
    grey = create_model(NAME, weights=path, channels=1).eval()
    image = torch.randn(1, 1, 224, 224)
    with torch.no_grad():
        assert torch.allclose(grey(image), model(image.expand(-1, 3, -1, -1)), atol=1e-5)


def test_unknown_rules_are_rejected(source) -> None:
    _, path = source
    with pytest.raises(SpecError, match=r"'bicubic' or 'zoom'"):
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
    assert loaded.changes == ("pre_logits layer added, as in the file",)
    tuned = create_model(NAME, weights=tmp_path / "w.npz", num_classes=3)
    assert "pre_logits layer dropped, as in the paper's fine-tuning" in tuned.changes
    assert tuned.head.in_features == 32


def test_pre_logits_are_dropped_only_with_their_classifier(tmp_path: Path) -> None:
    """The head was trained on the tanh layer: passing the file's own number of classes must not separate them."""
    model = fill(create_model(NAME, pre_logits=32, num_classes=12)).eval()
    save_weights(model, tmp_path / "w.npz", to="google")
    image = torch.randn(1, 3, 224, 224)
    assert torch.equal(create_model(NAME, weights=tmp_path / "w.npz", num_classes=12).eval()(image), model(image))


def test_half_precision_at_another_size(source, tmp_path: Path) -> None:
    model, path = source
    write_tensors({k: t.half() for k, t in read_tensors(path).items()}, tmp_path / "half.safetensors")
    loaded = create_model(NAME, weights=tmp_path / "half.safetensors", image_size=96).eval()
    full = create_model(NAME, weights=path, image_size=96).eval()
    image = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        assert torch.allclose(loaded(image), full(image), atol=2e-2)
        half = model.to(torch.bfloat16)  # and at run time
        assert half(image.bfloat16()).dtype == torch.bfloat16


def test_the_model_remembers_its_resize_rule(source) -> None:
    _, path = source
    zoomed = create_model(NAME, weights=path, resize_rule="zoom").eval()
    resized = create_model(NAME, weights=path, resize_rule="zoom", image_size=96).eval()
    image = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        assert torch.allclose(zoomed(image), resized(image), atol=1e-6)
        assert not torch.allclose(zoomed(image), create_model(NAME, weights=path).eval()(image), atol=1e-4)


WRONG = {
    "scalar head": {"head.weight": torch.zeros(()), "head.bias": torch.zeros(())},
    "head and bias of different lengths": {"head.bias": torch.zeros(5)},
    "no channels": {"patch_embed.proj.weight": torch.zeros(32, 0, 16, 16)},
    "flat positions": {"pos_embed": torch.zeros(197 * 32)},
    "four-dimensional positions": {"pos_embed": torch.zeros(1, 14, 14, 32)},
    "integers": {"norm.weight": torch.zeros(32, dtype=torch.int64)},
    "scalar matrix": {"blocks.0.attn.qkv.weight": torch.zeros(())},
}


@pytest.mark.parametrize("kind", WRONG)
def test_tensors_of_wrong_shapes_are_rejected(kind: str, source, tmp_path: Path) -> None:
    _, path = source
    write_tensors({**read_tensors(path), **WRONG[kind]}, tmp_path / "wrong.safetensors")
    with pytest.raises(WeightsError, match=r"do not match vit_mu_patch16_224|cannot be inferred"):
        create_model(NAME, weights=tmp_path / "wrong.safetensors")


@pytest.mark.parametrize("to", ["google", "hf", "torchvision"])
def test_foreign_tensors_of_wrong_shapes_are_rejected(to: str, tmp_path: Path) -> None:
    save_weights(fill(create_model(NAME)), tmp_path / "folder", to=to)
    path = next(file for file in (tmp_path / "folder").iterdir() if file.suffix != ".json")
    tensors = read_tensors(path)
    for key in tensors:
        write_tensors({**tensors, key: torch.zeros(())}, path)
        with pytest.raises(WeightsError, match=r"wrong shapes|do not match|without a counterpart"):
            create_model(NAME, weights=path)


def test_a_config_that_contradicts_the_name_is_followed_or_rejected(tmp_path: Path) -> None:
    import json

    model = fill(create_model(NAME, heads=4, image_size=(112, 448), activation="gelu_tanh")).eval()
    save_weights(model, tmp_path, to="hf")
    loaded = create_model(NAME, weights=tmp_path, image_size=(112, 448)).eval()
    assert (loaded.spec.heads, loaded.spec.activation) == (4, "gelu_tanh")
    image = torch.randn(1, 3, 112, 448)
    assert torch.equal(loaded(image), model(image))  # 7 x 28 cells, as many as 14 x 14
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "quick_gelu"}))
    with pytest.raises(WeightsError, match=r"hidden_act='quick_gelu', which Vitrail does not support"):
        create_model(NAME, weights=tmp_path, image_size=(112, 448))


@pytest.mark.parametrize(
    "config",
    [
        '{"model_type": ["vit"]}',
        '{"model_type": "vit", "layer_norm_eps": true}',
        '{"model_type": "vit", "layer_norm_eps": Infinity}',
        '{"model_type": "vit", "layer_norm_eps": 1' + "0" * 400 + "}",
        '{"model_type": "vit", "num_attention_heads": "two", "image_size": {"a": 1}}',
        "[" * 100_000,
        "3",
    ],
)
def test_a_nonsensical_config_is_ignored(config: str, tmp_path: Path) -> None:
    model = fill(create_model(NAME))
    save_weights(model, tmp_path, to="hf")
    (tmp_path / "config.json").write_text(config)
    assert create_model(NAME, weights=tmp_path).spec == model.spec


def test_another_architecture_is_rejected(source) -> None:
    _, path = source
    with pytest.raises(WeightsError, match=r"do not match vit_tiny_patch16_224") as caught:
        create_model("vit_tiny_patch16_224", weights=path)
    assert "missing" in str(caught.value)
    with pytest.raises(WeightsError, match=r"do not match resnetv2_50x1_bit"):
        create_model("resnetv2_50x1_bit", weights=path)


def test_other_prefix_tokens_are_another_model(source) -> None:
    _, path = source
    with pytest.raises(WeightsError, match=r"1 missing \(reg_token\)"):
        create_model(NAME, weights=path, registers=4)


def test_a_path_that_does_not_exist() -> None:
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
    """A file in huggingface_hub's cache is found offline, with the config beside it."""
    from huggingface_hub import constants

    model, path = source
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    snapshot = _put_in_cache(tmp_path / "cache", "someone/mu")
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(path.read_bytes())
    assert hub.fetch("someone/mu") == snapshot / "model.safetensors"
    loaded = create_model(NAME, weights="someone/mu")
    assert torch.equal(loaded.pos_embed, model.pos_embed)
    (snapshot / "model.safetensors").unlink()
    save_weights(model, snapshot / "pytorch_model.bin", to="hf")
    assert hub.fetch("someone/mu") == snapshot / "pytorch_model.bin"


def _put_in_cache(cache: Path, repository: str) -> Path:
    """The folder of the newest revision of a repository in huggingface_hub's cache."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    return folder / "snapshots" / ("0" * 40)


@pytest.mark.parametrize(
    ("weights", "repository", "form", "pool", "kernel"),
    [
        (name := "facebook/dinov3-vits16-pretrain-lvd1689m", name, "hf", "token", "bilinear"),
        ("vit_small_patch16_dinov3.lvd1689m", "timm/vit_small_patch16_dinov3.lvd1689m", "timm", "mean", "bicubic"),
    ],
)
def test_dinov3_by_its_names_on_the_hub(
    weights: str, repository: str, form: str, pool: str, kernel: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The name is that of the model too, and its files there say the rest."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = _put_in_cache(tmp_path, repository)
    model = fill(create_model(weights, depth=1, image_size=224 if form == "hf" else 256))
    save_weights(model, snapshot, to=form)
    if form == "hf":
        processor = {"image_processor_type": "DINOv3ViTImageProcessorFast", "resample": 2, "rescale_factor": 1 / 255}
        processor |= {"size": {"height": 224, "width": 224}, "do_resize": True, "do_center_crop": None}
        processor |= {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
        (snapshot / "preprocessor_config.json").write_text(json.dumps(processor))
    loaded = create_model(weights, weights=weights, depth=1)
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in loaded.state_dict().items())
    assert (loaded.spec.pool, loaded.spec.image_size) == (pool, (256, 256))
    assert (loaded.preprocess.kernel, loaded.preprocess.crop, loaded.preprocess.size) == (kernel, 1.0, (256, 256))


@pytest.mark.data
def test_real_weights(deit_tiny: Path) -> None:
    assert create_model("deit_tiny_patch16_224", weights=deit_tiny).changes == ()
