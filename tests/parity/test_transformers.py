"""transformers: our folder opens in `from_pretrained` with no key missing, and computes the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import fill
from tests.parity.compare import assert_parity
from tests.parity.conftest import transformers
from vitrail import create_model, save_weights

SIZES = [(224, 224), (384, 384), (160, 288)]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])


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


@DTYPES
@pytest.mark.parametrize("size", SIZES, ids=["224", "384", "160x288"])
@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "vit_base_patch16_224"]
)
def test_vit_and_deit(name: str, size: tuple[int, int], dtype: torch.dtype, tmp_path: Path) -> None:
    fields = {"depth": 2} if "base" in name and size == (384, 384) and dtype == torch.float64 else {}
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


@DTYPES
@pytest.mark.parametrize("size", SIZES[:2], ids=["224", "384"])  # their SigLIP takes only square images
def test_attention_pooling(size: tuple[int, int], dtype: torch.dtype, tmp_path: Path) -> None:
    ours, theirs = _pair("vit_base_patch16_siglip_224", size, tmp_path, depth=2)
    image = torch.randn(1, 3, *size)
    assert_parity(ours, theirs, image, format_name="hf", dtype=dtype, output=lambda result: result.pooler_output)


@DTYPES
@pytest.mark.parametrize("size", SIZES, ids=["224", "384", "160x288"])
def test_bit(size: tuple[int, int], dtype: torch.dtype, tmp_path: Path) -> None:
    ours, theirs = _pair("resnetv2_50x1_bit", size, tmp_path)
    image = torch.randn(1, 3, *size)
    assert_parity(ours, theirs, image, format_name="hf", dtype=dtype, output=lambda result: result.logits)


@DTYPES
def test_dinov2_without_registers(dtype: torch.dtype, tmp_path: Path) -> None:
    ours, theirs = _pair("vit_small_patch14_dinov2", (224, 224), tmp_path, depth=2)
    image = torch.randn(2, 3, 224, 224)
    assert_parity(ours, theirs, image, format_name="hf", dtype=dtype, output=lambda result: result.pooler_output)


def test_their_folder_with_registers_opens_by_name(tmp_path: Path) -> None:
    """transformers gives a position to the class token but not to the registers; timm's names alone do not say so."""
    model = fill(create_model("vit_small_patch14_reg4_dinov2", position_prefix=1))
    save_weights(model, tmp_path / "theirs", to="hf")
    loaded = create_model("vit_small_patch14_reg4_dinov2", weights=tmp_path / "theirs")
    assert loaded.spec == model.spec
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))
