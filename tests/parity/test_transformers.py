"""transformers: our folder opens in `from_pretrained` with no key missing, and computes the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import fill
from tests.parity.compare import ROTARY_TOLERANCE, assert_parity, case_id
from tests.parity.conftest import transformers
from vitrail import create_model, save_weights

F32, F64 = torch.float32, torch.float64
DTYPES = pytest.mark.parametrize("dtype", [F32, F64], ids=["f32", "f64"])
SMALL = ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"]
# The smallest model of each kind has all its blocks, others have two.
CASES = [
    *((name, (224, 224), F32, {}) for name in SMALL),
    *((name, (160, 288), F64, {}) for name in SMALL),
    *((name, (384, 384), F64, {"depth": 2}) for name in SMALL),
    ("vit_base_patch16_224", (224, 224), F32, {"depth": 2}),
    ("vit_base_patch16_224", (96, 256), F64, {"depth": 2}),
]


def _theirs(folder: Path) -> torch.nn.Module:
    """The class that the folder's config.json names, opened as a user would."""
    architecture = transformers.AutoConfig.from_pretrained(folder).architectures[0]
    model, info = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    # The mask token is for pre-training: our ViT has none, and the output does not depend on it.
    missing = {key for key in info["missing_keys"] if not key.endswith("mask_token")}
    assert (missing, set(info["unexpected_keys"]), set(info["mismatched_keys"])) == (set(), set(), set())
    return model


def _pair(name: str, size: tuple[int, int], folder: Path, **fields: object) -> tuple[torch.nn.Module, torch.nn.Module]:
    source = fill(create_model(name, **fields))
    save_weights(source, folder / "224", to="hf")
    ours = create_model(name, weights=folder / "224", image_size=size, **fields)
    save_weights(ours, folder / "resized", to="hf")
    return ours, _theirs(folder / "resized")


@pytest.mark.parametrize(("name", "size", "dtype", "fields"), CASES, ids=case_id)
def test_vit_and_deit(
    name: str, size: tuple[int, int], dtype: torch.dtype, fields: dict[str, int], tmp_path: Path
) -> None:
    ours, theirs = _pair(name, size, tmp_path, **fields)
    image = torch.randn(1, 3, *size)
    assert_parity(ours, theirs, image, format_name="hf", dtype=dtype, output=lambda result: result.logits)


@DTYPES
def test_old_norm_epsilon_is_followed(dtype: torch.dtype, tmp_path: Path) -> None:
    """Old ViTs on the hub have 1e-12; the config.json says so, and it counts."""
    fields = {"norm_eps": 1e-12, "depth": 2}
    save_weights(fill(create_model("vit_tiny_patch16_224", **fields)), tmp_path / "old", to="hf")
    ours = create_model("vit_tiny_patch16_224", weights=tmp_path / "old", depth=2)
    assert ours.spec.norm_eps == 1e-12
    assert "norm_eps=1e-12, as in the file or the config.json beside it" in ours.changes
    theirs = _theirs(tmp_path / "old")
    assert_parity(
        ours, theirs, torch.randn(1, 3, 224, 224), format_name="hf", dtype=dtype, output=lambda result: result.logits
    )


@DTYPES
def test_registers(dtype: torch.dtype, tmp_path: Path) -> None:
    fields = {"depth": 2, "position_prefix": 1}
    ours, theirs = _pair("vit_small_patch14_reg4_dinov2", (224, 224), tmp_path, **fields)
    image = torch.randn(2, 3, 224, 224)
    assert_parity(ours, theirs, image, format_name="hf", dtype=dtype, output=lambda result: result.pooler_output)


# Their SigLIP takes only square images.
@pytest.mark.parametrize(("size", "dtype"), [((224, 224), F32), ((384, 384), F64)], ids=case_id)
def test_attention_pooling(size: tuple[int, int], dtype: torch.dtype, tmp_path: Path) -> None:
    ours, theirs = _pair("vit_base_patch16_siglip_224", size, tmp_path, depth=2)
    image = torch.randn(1, 3, *size)
    assert_parity(ours, theirs, image, format_name="hf", dtype=dtype, output=lambda result: result.pooler_output)


@pytest.mark.parametrize(("size", "dtype"), [((224, 224), F32), ((97, 161), F32), ((64, 96), F64)], ids=case_id)
def test_bit(size: tuple[int, int], dtype: torch.dtype, tmp_path: Path) -> None:
    ours, theirs = _pair("resnetv2_50x1_bit", size, tmp_path)
    image = torch.randn(1, 3, *size)
    assert_parity(ours, theirs, image, format_name="hf", dtype=dtype, output=lambda result: result.logits)


@DTYPES
def test_dinov2_without_registers(dtype: torch.dtype, tmp_path: Path) -> None:
    ours, theirs = _pair("vit_small_patch14_dinov2", (224, 224), tmp_path, depth=2)
    image = torch.randn(2, 3, 224, 224)
    assert_parity(ours, theirs, image, format_name="hf", dtype=dtype, output=lambda result: result.pooler_output)


@pytest.mark.parametrize(
    ("name", "size", "dtype", "fields"),
    [
        ("vit_small_patch16_dinov3_qkvb", (224, 224), F32, {"depth": 2}),
        ("vit_small_patch16_dinov3_qkvb", (256, 384), F64, {"depth": 1}),
        ("vit_small_plus_patch16_dinov3_qkvb", (512, 512), F32, {"depth": 1}),
        ("vit_7b_patch16_dinov3", (256, 384), F64, {"depth": 1, "width": 64, "heads": 4, "hidden": 96}),
        ("vit_mu_patch16_dinov3", (224, 224), F32, {"qkv_bias": True}),
    ],
    ids=case_id,
)
def test_dinov3(name: str, size: tuple[int, int], dtype: torch.dtype, fields: dict[str, int], tmp_path: Path) -> None:
    ours, theirs = _pair(name, size, tmp_path, **fields)
    assert ours.spec.pool == "token"
    assert_parity(
        ours,
        theirs,
        torch.randn(1, 3, *size),
        format_name="hf",
        dtype=dtype,
        output=lambda result: result.pooler_output,
        tolerance=ROTARY_TOLERANCE,
    )


def test_every_token_of_dinov3(tmp_path: Path) -> None:
    ours, theirs = _pair("vit_mu_patch16_dinov3_qkvb", (64, 96), tmp_path)
    image = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        tokens = ours.eval().encode(ours.tokenize(image)).x
        assert torch.allclose(tokens, theirs.eval()(image).last_hidden_state, atol=1e-5)


def test_their_folder_with_registers_opens_by_name(tmp_path: Path) -> None:
    """transformers gives a position to the class token but not to the registers; timm's names alone do not say so."""
    model = fill(create_model("vit_small_patch14_reg4_dinov2", position_prefix=1))
    save_weights(model, tmp_path / "theirs", to="hf")
    loaded = create_model("vit_small_patch14_reg4_dinov2", weights=tmp_path / "theirs")
    assert loaded.spec == model.spec
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))
