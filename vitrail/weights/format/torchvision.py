"""torchvision's names (models/vision_transformer.py), both current and those of its first release."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from vitrail.weights import rules
from vitrail.weights.rules import Fields, State, layer, rule

PREPROCESS = {"crop": 0.875, "kernel": "bilinear", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
SUFFIXES = (".pth", ".pt", ".safetensors")
BLOCK = "encoder.layers.encoder_layer_{a}"
RULES = [
    rule("cls_token", "class_token"),
    rule("pos_embed", "encoder.pos_embedding"),
    *layer("patch_embed.proj", "conv_proj"),
    *layer("blocks.{a}.norm1", f"{BLOCK}.ln_1"),
    rule("blocks.{a}.attn.qkv.weight", f"{BLOCK}.self_attention.in_proj_weight"),
    rule("blocks.{a}.attn.qkv.bias", f"{BLOCK}.self_attention.in_proj_bias"),
    *layer("blocks.{a}.attn.proj", f"{BLOCK}.self_attention.out_proj"),
    *layer("blocks.{a}.norm2", f"{BLOCK}.ln_2"),
    *layer("blocks.{a}.mlp.fc1", f"{BLOCK}.mlp.0"),
    *layer("blocks.{a}.mlp.fc2", f"{BLOCK}.mlp.3"),
    *layer("norm", "encoder.ln"),
    *layer("pre_logits.fc", "heads.pre_logits"),
    *layer("head", "heads.head"),
]
FIRST_RELEASE = [
    *layer("blocks.{a}.mlp.fc1", f"{BLOCK}.mlp.linear_1"),
    *layer("blocks.{a}.mlp.fc2", f"{BLOCK}.mlp.linear_2"),
]


def recognise(keys: Collection[str]) -> bool:
    """Whether tensors with these names are in this format."""
    return "conv_proj.weight" in keys and "encoder.pos_embedding" in keys


def read(tensors: Mapping[str, Tensor]) -> State:
    """The tensors under native names."""
    return rules.read(tensors, RULES + FIRST_RELEASE, "torchvision")


def write(state: Mapping[str, Tensor], fields: Fields) -> State:
    """The tensors under this format's names."""
    required = {"pool": "token", "position": "learned", "norm_after_pool": False, "activation": "gelu"}
    rules.require(fields, "torchvision", class_token=True, **required)
    return rules.write(state, RULES, fields, "torchvision")
