"""Small models of every kind with random weights, and a random image."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conftest import fill
from vitrail import create_model, plug

METHODS = plug.entries("vitrail.inspection.method")
SMALL: dict[str, dict[str, Any]] = {
    "class token": {"name": "vit_mu_patch16_224"},
    "mean pooling": {"name": "vit_mu_patch16_gap_224"},
    "distilled": {"name": "deit_mu_distilled_patch16_224"},
    "registers": {"name": "vit_mu_patch16_reg4_224"},
    "dinov3": {"name": "vit_mu_patch16_dinov3_qkvb", "image_size": 224, "mlp": "swiglu", "pool": "token"},
    "attention pooling": {"name": "vit_mu_patch16_siglip_224", "num_classes": 10},
    "hybrid": {"name": "vit_mu_r_s16_p8_224"},
    "convolutional stem": {"name": "vit_mu_conv16_128"},
    "local": {"name": "vit_mu_patch16_reg4_224", "attention": {"name": "local", "window": 5}},
    "local relative": {
        "name": "vit_mu_patch16_gap_224",
        "attention": {"name": "local", "window": 3, "relative": True},
        "image_size": (160, 288),
        "depth": 1,
    },
    "axial": {"name": "vit_mu_patch16_224", "attention": "axial"},
    "384 px": {"name": "vit_mu_patch16_384"},
    "160 x 288 px": {"name": "vit_mu_patch16_224", "image_size": (160, 288)},
}
# These have no class token, and no blocks of attention and MLP: of the explanations, they have Grad-CAM's.
RESNETS: dict[str, dict[str, Any]] = {
    f"resnet, {name}": {"name": f"{name}_32", "layers": (1, 1)}
    for name in (
        *("resnet26", "resnet26_sasa", "resnet26_lrnet", "resnet26_axial", "resnet26_augmented"),
        *("san10_pairwise", "san10_patchwise"),
    )
}


def small(kind: str, **more: Any) -> Any:
    fields = {**SMALL, **RESNETS}[kind]
    return fill(create_model(**{"num_classes": 10, **fields, **more}), 0.1).eval()


def foreign(kind: str) -> Any:
    from tests.parity.conftest import timm, transformers

    if kind == "timm":
        return fill(timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10), 0.1)
    if kind == "timm's dinov3":
        sizes = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 64}
        return fill(timm.create_model("vit_small_plus_patch16_dinov3_qkvb", **sizes, num_classes=10), 0.1)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
    return fill(transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, num_labels=10)), 0.1)


def random_image(rows: int = 200, columns: int = 300, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8)
