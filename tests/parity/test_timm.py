"""timm: both load the same weight file and compute the same, at several sizes and with resized position tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import fill
from tests.parity.compare import assert_parity, far
from tests.parity.conftest import timm
from vitrail import create_model, save_weights
from vitrail.catalogue import build, list_models, on_meta, preprocess_named, spec_named
from vitrail.weights.format import timm as timm_format
from vitrail.weights.tensor_files import write_tensors

SIZES = [(224, 224), (384, 384), (160, 288)]
SMALL = ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "vit_tiny_r_s16_p8_224"]
REGISTERS_AND_POOLING = [
    "vit_medium_patch16_reg4_gap_256",
    "vit_base_patch16_siglip_224",
    "vit_base_patch14_reg4_dinov2",
]
LARGE = ["vit_base_patch16_224", "vit_base_r50_s16_224"]


def _pair(name: str, size: tuple[int, int], folder: Path, **fields: object) -> tuple[torch.nn.Module, torch.nn.Module]:
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


def _depth(name: str, size: tuple[int, int], dtype: torch.dtype) -> dict[str, int]:
    """The largest inputs in float64 use two blocks: the code is the same, and the suite stays fast."""
    return {"depth": 2} if name in LARGE and size == (384, 384) and dtype == torch.float64 else {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("size", SIZES, ids=["224", "384", "160x288"])
@pytest.mark.parametrize("name", SMALL + LARGE)
def test_vit(name: str, size: tuple[int, int], dtype: torch.dtype, tmp_path: Path) -> None:
    ours, theirs = _pair(name, size, tmp_path, **_depth(name, size, dtype))
    image = torch.randn(1 if name in LARGE else 2, 3, *size)
    assert_parity(ours, theirs, image, format_name="timm", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("size", [(224, 224), (448, 448), (112, 224)], ids=["224", "448", "112x224"])
@pytest.mark.parametrize("name", REGISTERS_AND_POOLING)
def test_registers_and_attention_pooling(name: str, size: tuple[int, int], dtype: torch.dtype, tmp_path: Path) -> None:
    ours, theirs = _pair(name, size, tmp_path, depth=2)
    assert_parity(ours, theirs, torch.randn(1, 3, *size), format_name="timm", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("size", SIZES, ids=["224", "384", "160x288"])
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


@pytest.mark.parametrize("name", [name for name in list_models() if "_mu_" not in name])  # only ours, for tests
def test_same_tensors_as_timm(name: str) -> None:
    """Every model in the catalogue has timm's keys and shapes, and therefore its number of parameters."""
    spec = spec_named(name)
    with on_meta():
        ours = build(spec).state_dict()
    with torch.device("meta"):
        theirs = timm.create_model(name, num_classes=spec.num_classes).state_dict()
    assert {key: tensor.shape for key, tensor in ours.items()} == {key: tensor.shape for key, tensor in theirs.items()}


def test_the_resized_position_table_matches_timm() -> None:
    from timm.layers import resample_abs_pos_embed

    from vitrail.nn.position import resize_table
    from vitrail.tokens import Layout

    table = torch.randn(1, 197, 64)
    for grid in [(24, 24), (10, 18), (37, 37), (7, 7)]:
        theirs = resample_abs_pos_embed(table, list(grid), num_prefix_tokens=1)
        assert far(resize_table(table, Layout((14, 14), 1), Layout(grid, 1)), theirs) < 1e-6
