"""timm's names (vision_transformer.py, vision_transformer_hybrid.py, resnetv2.py), which are Vitrail's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.weights.rules import Facts, State

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
MARKS = ("patch_embed.proj.weight", "stages.0.blocks.0.conv1.weight")


def recognise(keys: Collection[str]) -> bool:
    """Whether tensors with these names are in this format."""
    return any(mark in keys for mark in MARKS)


def read(tensors: Mapping[str, Tensor]) -> State:
    """The tensors under native names."""
    return dict(tensors)


def write(state: Mapping[str, Tensor], facts: Facts) -> State:
    """The tensors under this format's names."""
    if any(key.startswith("pre_logits.") for key in state):
        raise WeightsError(
            "timm has no place for the pre_logits layer.",
            got="a model with pre_logits.",
            hint="--to google or --to torchvision, which have one.",
        )
    tokens = sum(state[key].shape[1] for key in ("cls_token", "dist_token", "reg_token") if key in state)
    if facts.get("position_prefix") not in (None, 0, tokens):
        raise WeightsError(
            "timm gives positions to all prefix tokens or to none.", got=f"position_prefix={facts['position_prefix']}."
        )
    return dict(state)


def config(facts: Facts, name: str) -> dict[str, Any]:
    """timm's config.json: the architecture's name and what differs from its defaults."""
    sizes = {"num_classes": facts["num_classes"], "in_chans": facts["channels"]}
    return {
        "architecture": name,
        "num_classes": facts["num_classes"],
        "model_args": {**sizes, **({"img_size": list(facts["image_size"])} if "stem" in facts else {})},
    }
