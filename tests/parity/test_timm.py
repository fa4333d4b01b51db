"""timm: both load the same weight file and compute the same, at several sizes and with resized position tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.conftest import fill
from tests.parity.compare import assert_parity, case_id, far
from tests.parity.conftest import timm
from vitrail import create_model, save_weights
from vitrail.catalogue import build, list_models, on_meta, preprocess_named, spec_named
from vitrail.weights.format import timm as timm_format
from vitrail.weights.tensor_files import write_tensors

OWN, LARGER, OBLONG = (224, 224), (384, 384), (160, 288)
SMALL = ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "vit_tiny_r_s16_p8_224"]
LARGE = ["vit_base_patch16_224", "vit_base_r50_s16_224"]
REGISTERS_AND_POOLING = [
    "vit_medium_patch16_reg4_gap_256",
    "vit_base_patch16_siglip_224",
    "vit_base_patch14_reg4_dinov2",
]
# The smallest model of each kind has all its blocks. Others have two: test_same_as_timm_in_the_catalogue compares the
# number of blocks, and each block runs the same code.
CASES = [
    *((name, OWN, torch.float32, {}) for name in SMALL),
    *((name, OBLONG, torch.float64, {}) for name in SMALL),
    *((name, LARGER, torch.float64, {"depth": 2}) for name in SMALL),
    *((name, OWN, torch.float32, {"depth": 2}) for name in LARGE),
    *((name, (96, 256), torch.float64, {"depth": 2}) for name in LARGE),
    *((name, OWN, torch.float32, {"depth": 2}) for name in REGISTERS_AND_POOLING),
    *((name, (112, 336), torch.float64, {"depth": 2}) for name in REGISTERS_AND_POOLING),
]


SETTINGS = [
    *((nn.LayerNorm, "eps"), (nn.GroupNorm, "eps"), (nn.GroupNorm, "num_groups")),
    *((nn.GELU, "approximate"), (nn.Conv2d, "stride")),
]


def _pair(name: str, size: tuple[int, int], folder: Path, **fields: object) -> tuple[nn.Module, nn.Module]:
    """Both projects read one file, saved at the model's own size, and resize the position table themselves."""
    source = fill(create_model(name, **fields))
    write_tensors(timm_format.write(source.state_dict(), source.spec.model_dump()), folder / "w.safetensors")
    ours = create_model(name, weights=folder / "w.safetensors", image_size=size, **fields)
    depth = {"depth": fields["depth"]} if "depth" in fields else {}
    theirs = timm.create_model(
        name,
        img_size=size,
        num_classes=source.spec.num_classes,
        pretrained=True,
        pretrained_cfg_overlay={
            "file": str(folder / "w.safetensors"),
            "num_classes": source.spec.num_classes,
            "custom_load": False,
        },
        **depth,
    )
    return ours, theirs


@pytest.mark.parametrize(("name", "size", "dtype", "fields"), CASES, ids=case_id)
def test_vit(name: str, size: tuple[int, int], dtype: torch.dtype, fields: dict[str, int], tmp_path: Path) -> None:
    ours, theirs = _pair(name, size, tmp_path, **fields)
    image = torch.randn(2 if name in SMALL else 1, 3, *size)
    assert_parity(ours, theirs, image, format_name="timm", dtype=dtype)


@pytest.mark.parametrize(
    ("size", "dtype"), [(OWN, torch.float32), ((97, 161), torch.float32), ((64, 96), torch.float64)], ids=case_id
)
def test_bit(size: tuple[int, int], dtype: torch.dtype) -> None:
    name = "resnetv2_50x1_bit"
    ours = fill(create_model(name, image_size=size))
    theirs = timm.create_model(name, num_classes=1000)
    theirs.load_state_dict(timm_format.write(ours.state_dict(), {}))
    assert_parity(ours, theirs, torch.randn(1, 3, *size), format_name="timm", dtype=dtype)


FOLDERS = {
    "deit": ("deit_tiny_patch16_224", {}),
    "distilled": ("deit_tiny_distilled_patch16_224", {"depth": 2}),
    "changed": ("vit_tiny_patch16_224", {"registers": 4, "pool": "mean", "depth": 3, "channels": 1, "num_classes": 7}),
    "non-square": (
        "vit_tiny_patch16_224",
        {"image_size": (96, 160), "depth": 2, "stem": {"name": "patch", "patch": 8}},
    ),
    "no-position": ("vit_tiny_patch16_224", {"position": "none", "depth": 2}),
    "gap": ("vit_medium_patch16_reg4_gap_256", {"depth": 2}),
    "registers": ("vit_small_patch14_reg4_dinov2", {"depth": 2, "image_size": 70}),
    "attention-pool": ("vit_base_patch16_siglip_224", {"depth": 1}),
    "hybrid": ("vit_tiny_r_s16_p8_224", {"depth": 2}),
    "bit": ("resnetv2_50x1_bit", {"image_size": 64}),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_timm_opens_our_folder(kind: str, tmp_path: Path) -> None:
    """The config.json holds all differences from the architecture's defaults, preprocessing included."""
    name, fields = FOLDERS[kind]
    ours = fill(create_model(name, **fields)).eval()
    save_weights(ours, tmp_path / "folder", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True).eval()
    image = torch.randn(2, ours.spec.channels, *ours.spec.image_size)
    with torch.no_grad():
        assert far(ours(image), theirs(image)) < 1e-5
    wanted = ours.preprocess or preprocess_named(name)
    config = timm.data.resolve_data_config({}, model=theirs)
    assert (config["crop_pct"], tuple(config["mean"])) == (wanted.crop, wanted.mean)
    assert tuple(config["input_size"]) == (ours.spec.channels, *ours.spec.image_size)


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {key: tensor.shape for key, tensor in model.state_dict().items()}


def _settings(model: nn.Module) -> dict[str, object]:
    """What a model computes with that no tensor's shape shows: heads, epsilons, groups, activations and strides."""
    found: dict[str, object] = {}
    for name, module in model.named_modules():
        if name and (hasattr(module, "num_heads") or hasattr(module, "heads")):  # a model's own `heads` are layers
            found[f"{name}.heads"] = getattr(module, "num_heads", None) or module.heads
        for kind, key in SETTINGS:
            if isinstance(module, kind):
                found[f"{name}.{key}"] = getattr(module, key)
    return found


@pytest.mark.parametrize(
    "name", [name for name in list_models() if not re.search("_mu_|^linear_|^perceiver_", name)]
)  # only ours
def test_same_as_timm_in_the_catalogue(name: str) -> None:
    """Every model has timm's keys and shapes, therefore its number of parameters and blocks, and its settings."""
    spec = spec_named(name)
    with on_meta():
        ours = build(spec)
    with torch.device("meta"):
        theirs = timm.create_model(name, num_classes=spec.num_classes)
    assert _shapes(ours) == _shapes(theirs)
    assert _settings(ours) == _settings(theirs)


def test_the_resized_position_table_matches_timm() -> None:
    from timm.layers import resample_abs_pos_embed

    from vitrail.nn.position import resize_table
    from vitrail.tokens import Layout

    table = torch.randn(1, 197, 64)
    for grid in [(24, 24), (10, 18), (37, 37), (7, 7)]:
        theirs = resample_abs_pos_embed(table, list(grid), num_prefix_tokens=1)
        assert far(resize_table(table, Layout((14, 14), 1), Layout(grid, 1)), theirs) < 1e-6
