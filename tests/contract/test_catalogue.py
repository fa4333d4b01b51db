"""The catalogue: names, aliases and sizes."""

from __future__ import annotations

import pytest

from vitrail import list_models
from vitrail.catalogue import build, describe, family_of, on_meta, preprocess_named, spec_named
from vitrail.names import canonical

PARAMETERS = {
    "vit_base_patch16_224": 86_567_656,
    "vit_large_patch16_224": 304_326_632,
    "vit_huge_patch14_224": 632_045_800,
    "deit_tiny_patch16_224": 5_717_416,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    assert describe(name).params == PARAMETERS[name]


def test_parameters_of_the_largest_bit() -> None:
    with on_meta():
        model = build(spec_named("resnetv2_152x4").override({"num_classes": 21843}))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_107_299_923  # as timm counts it


def test_gflops_match_the_paper() -> None:
    assert describe("ViT-B/16").gflops == pytest.approx(35.1, abs=0.1)  # 17.6 G multiply-adds


@pytest.mark.parametrize("name", list_models())
def test_the_catalogue(name: str) -> None:
    entry = describe(name)
    spec = spec_named(name)
    assert entry.tokens == spec.layout.num_tokens
    assert canonical(name) == name
    assert preprocess_named(name).size == spec.image_size
    assert type(spec).parse_yaml(spec.to_yaml()) == spec
    assert family_of(spec).spec_named(name) == spec


ALIASES = {
    "ViT-B/16": "vit_base_patch16_224",
    "B_16": "vit_base_patch16_224",
    "vit_b_16": "vit_base_patch16_224",
    "google/vit-base-patch16-224": "vit_base_patch16_224",
    "ViT-L/16@384": "vit_large_patch16_384",
    "ViT-H/14": "vit_huge_patch14_224",
    "ViT-g/14": "vit_giant_patch14_224",
    "ViT-G/14": "vit_gigantic_patch14_224",
    "google/vit-base-patch16-224-in21k": "vit_base_patch16_224",
    "facebook/dinov2-base": "vit_base_patch14_dinov2",
    "facebook/dinov2-with-registers-small": "vit_small_patch14_reg4_dinov2",
    "facebook/dinov3-vits16-pretrain-lvd1689m": "vit_small_patch16_dinov3_qkvb",
    "facebook/dinov3-vits16plus-pretrain-lvd1689m": "vit_small_plus_patch16_dinov3_qkvb",
    "facebook/dinov3-vitb16-pretrain-lvd1689m": "vit_base_patch16_dinov3_qkvb",
    "facebook/dinov3-vitl16-pretrain-sat493m": "vit_large_patch16_dinov3_qkvb",
    "facebook/dinov3-vith16plus-pretrain-lvd1689m": "vit_huge_plus_patch16_dinov3_qkvb",
    "facebook/dinov3-vit7b16-pretrain-lvd1689m": "vit_7b_patch16_dinov3",
    "timm/vit_large_patch16_dinov3.sat493m": "vit_large_patch16_dinov3",
    "google/siglip-base-patch16-224": "vit_base_patch16_siglip_224",
    "google/bit-50": "resnetv2_50x1_bit",
    "facebook/deit-tiny-patch16-224": "deit_tiny_patch16_224",
    "deit_tiny_patch16_224.fb_in1k": "deit_tiny_patch16_224",
    "timm/vit_tiny_patch16_224.augreg_in21k": "vit_tiny_patch16_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
    "R26+S/32": "vit_small_r26_s32_224",
    "R50+L/32": "vit_large_r50_s32_224",
    "R+Ti/16": "vit_tiny_r_s16_p8_224",
    "resnetv2_152x4": "resnetv2_152x4_bit",
    "BiT-M-R50x1": "resnetv2_50x1_bit",
}


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases(alias: str) -> None:
    assert canonical(alias) == ALIASES[alias]
    assert spec_named(alias) == spec_named(ALIASES[alias])


def test_so400m_by_specification_alone() -> None:
    spec = spec_named("vit_base_patch16_224").override(
        {"width": 1152, "depth": 27, "heads": 16, "hidden": 4304, "stem": {"name": "patch", "patch": (14, 14)}}
    )
    with on_meta():
        model = build(spec)
    assert sum(p.numel() for p in model.blocks.parameters()) == 27 * (4 * 1152**2 + 2 * 1152 * 4304 + 9 * 1152 + 4304)
