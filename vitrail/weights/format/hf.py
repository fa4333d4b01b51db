"""Hugging Face transformers' names for ViT, DeiT, DINOv2 with registers, DINOv3, SigLIP's vision tower and BiT.

Two generations are read: `encoder.layer.N.attention.attention.query` (still used on disk) and
`layers.N.attention.q_proj` (the module names since transformers 5). The first is written, because all releases open it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.weights import rules
from vitrail.weights.hf_config import config_files, infer_fields
from vitrail.weights.rules import Fields, Rule, State, TensorTransform, concat, layer, rule

__all__ = ["SUFFIXES", "config_files", "infer_fields", "read", "recognise", "write"]

SUFFIXES = (".safetensors", ".bin")
NEXT_GENERATION = (
    (re.compile(r"^layers\.(\d+)\."), r"encoder.layer.\1."),
    (re.compile(r"\.attention\.q_proj\."), ".attention.attention.query."),
    (re.compile(r"\.attention\.k_proj\."), ".attention.attention.key."),
    (re.compile(r"\.attention\.v_proj\."), ".attention.attention.value."),
    (re.compile(r"\.attention\.o_proj\."), ".attention.output.dense."),
)
NEXT_GENERATION_MLP = (  # DINOv2 calls its layers fc1 and fc2 in both generations
    (re.compile(r"^(encoder\.layer\.\d+)\.mlp\.fc1\."), r"\1.intermediate.dense."),
    (re.compile(r"^(encoder\.layer\.\d+)\.mlp\.fc2\."), r"\1.output.dense."),
)
BLOCK = "encoder.layer.{a}"
QKV = [f"{BLOCK}.attention.attention.{part}" for part in ("query", "key", "value")]
EMBEDDINGS = [
    rule("cls_token", "embeddings.cls_token"),
    rule("dist_token", "embeddings.distillation_token"),
    rule("reg_token", "embeddings.register_tokens"),
    rule("pos_embed", "embeddings.position_embeddings"),
    *layer("patch_embed.proj", "embeddings.patch_embeddings.projection"),
    *layer("blocks.{a}.attn.qkv", QKV, concat(3)),
    *layer("blocks.{a}.attn.proj", f"{BLOCK}.attention.output.dense"),
    *layer("norm", "layernorm"),
]
VIT = [
    *EMBEDDINGS,
    *layer("blocks.{a}.norm1", f"{BLOCK}.layernorm_before"),
    *layer("blocks.{a}.norm2", f"{BLOCK}.layernorm_after"),
    *layer("blocks.{a}.mlp.fc1", f"{BLOCK}.intermediate.dense"),
    *layer("blocks.{a}.mlp.fc2", f"{BLOCK}.output.dense"),
    *layer("pre_logits.fc", "pooler.dense"),
]
DINOV2 = [
    *EMBEDDINGS,
    rule("mask_token", "embeddings.mask_token"),
    *layer("blocks.{a}.norm1", f"{BLOCK}.norm1"),
    *layer("blocks.{a}.norm2", f"{BLOCK}.norm2"),
    *layer("blocks.{a}.mlp.fc1", f"{BLOCK}.mlp.fc1"),
    *layer("blocks.{a}.mlp.fc2", f"{BLOCK}.mlp.fc2"),
    rule("blocks.{a}.ls1.gamma", f"{BLOCK}.layer_scale1.lambda1"),
    rule("blocks.{a}.ls2.gamma", f"{BLOCK}.layer_scale2.lambda1"),
]
DINOV3_QKV = [f"layer.{{a}}.attention.{part}_proj" for part in "qkv"]
DINOV3_MLP = ["layer.{a}.mlp.up_proj", "layer.{a}.mlp.gate_proj", "layer.{a}.mlp.down_proj"]
DINOV3 = [
    rule("cls_token", "embeddings.cls_token"),
    rule("mask_token", "embeddings.mask_token"),
    rule("reg_token", "embeddings.register_tokens"),
    *layer("patch_embed.proj", "embeddings.patch_embeddings"),
    *layer("blocks.{a}.attn.qkv", DINOV3_QKV, concat(3)),
    rule([f"blocks.{{a}}.attn.qkv.{part}_bias" for part in "qv"], [f"{name}.bias" for name in DINOV3_QKV[::2]]),
    *layer("blocks.{a}.attn.proj", "layer.{a}.attention.o_proj"),
    *[
        # With a gate, the same name means another layer.
        rule([f"blocks.{{a}}.mlp.fc1_{half}.{part}" for half in "xg"], [f"{name}.{part}" for name in DINOV3_MLP[:2]])
        for part in ("weight", "bias")
    ],
    *layer("blocks.{a}.mlp.fc1", DINOV3_MLP[0]),
    *layer("blocks.{a}.mlp.fc2", DINOV3_MLP[2]),
    *[each for i in (1, 2) for each in layer(f"blocks.{{a}}.norm{i}", f"layer.{{a}}.norm{i}")],
    *[rule(f"blocks.{{a}}.ls{i}.gamma", f"layer.{{a}}.layer_scale{i}.lambda1") for i in (1, 2)],
    *layer("norm", "norm"),
]
POSITION_TABLE = TensorTransform(lambda tensors: [tensors[0][None]], lambda tensors, _: [tensors[0][0]])
SPLIT_Q_KV = TensorTransform(
    lambda tensors: list(torch.split(tensors[0], [tensors[0].shape[0] // 3, tensors[0].shape[0] // 3 * 2])),
    lambda tensors, _: concat(2).read(tensors),
)
SIGLIP_BLOCK = "encoder.layers.{a}"
SIGLIP = [
    rule("pos_embed", "embeddings.position_embedding.weight", POSITION_TABLE),
    *layer("patch_embed.proj", "embeddings.patch_embedding"),
    *layer("blocks.{a}.norm1", f"{SIGLIP_BLOCK}.layer_norm1"),
    *layer("blocks.{a}.attn.qkv", [f"{SIGLIP_BLOCK}.self_attn.{part}_proj" for part in "qkv"], concat(3)),
    *layer("blocks.{a}.attn.proj", f"{SIGLIP_BLOCK}.self_attn.out_proj"),
    *layer("blocks.{a}.norm2", f"{SIGLIP_BLOCK}.layer_norm2"),
    *layer("blocks.{a}.mlp.fc1", f"{SIGLIP_BLOCK}.mlp.fc1"),
    *layer("blocks.{a}.mlp.fc2", f"{SIGLIP_BLOCK}.mlp.fc2"),
    *layer("norm", "post_layernorm"),
    rule("attn_pool.latent", "head.probe"),
    rule(["attn_pool.q.weight", "attn_pool.kv.weight"], "head.attention.in_proj_weight", SPLIT_Q_KV),
    rule(["attn_pool.q.bias", "attn_pool.kv.bias"], "head.attention.in_proj_bias", SPLIT_Q_KV),
    *layer("attn_pool.proj", "head.attention.out_proj"),
    *layer("attn_pool.norm", "head.layernorm"),
    *layer("attn_pool.mlp.fc1", "head.mlp.fc1"),
    *layer("attn_pool.mlp.fc2", "head.mlp.fc2"),
]
LINEAR_AS_CONV = TensorTransform(
    lambda tensors: [t[:, :, None, None] if t.ndim == 2 else t for t in tensors],
    lambda tensors, _: [t.flatten(1) if t.ndim == 4 else t for t in tensors],
)
UNIT = "stages.{a}.blocks.{b}"
BIT = [
    rule("stem.conv.weight", "embedder.convolution.weight"),
    *[rule(f"{UNIT}.conv{i}.weight", f"encoder.stages.{{a}}.layers.{{b}}.conv{i}.weight") for i in (1, 2, 3)],
    *[each for i in (1, 2, 3) for each in layer(f"{UNIT}.norm{i}", f"encoder.stages.{{a}}.layers.{{b}}.norm{i}")],
    rule(f"{UNIT}.downsample.conv.weight", "encoder.stages.{a}.layers.{b}.downsample.conv.weight"),
    *layer("norm", "norm"),
]
# model_type: the prefix of the trunk, its rules, and the rules of the heads, which have no prefix.
FAMILIES: dict[str, tuple[str, list[Rule], list[Rule]]] = {
    "deit": ("deit.", VIT, [*layer("head", "cls_classifier"), *layer("head_dist", "distillation_classifier")]),
    "dinov2_with_registers": ("dinov2_with_registers.", DINOV2, []),
    "dinov2": ("dinov2.", DINOV2, []),
    "dinov3_vit": ("model.", DINOV3, []),
    "siglip_vision_model": ("vision_model.", SIGLIP, []),
    "bit": ("bit.", BIT, layer("head.fc", "classifier.1", LINEAR_AS_CONV)),
    "vit": ("vit.", VIT, layer("head", "classifier")),
}
FAMILY_MARKS = {  # key on disk or natively: family; the first that occurs decides
    "embeddings.patch_embeddings.weight": "dinov3_vit",
    "embeddings.distillation_token": "deit",
    "dist_token": "deit",
    "embeddings.register_tokens": "dinov2_with_registers",
    "reg_token": "dinov2_with_registers",
    "encoder.layer.0.layer_scale1.lambda1": "dinov2",
    "blocks.0.ls1.gamma": "dinov2",
    "embeddings.position_embedding.weight": "siglip_vision_model",
    "attn_pool.latent": "siglip_vision_model",
    "embedder.convolution.weight": "bit",
    "stem.conv.weight": "bit",
    "embeddings.patch_embeddings.projection.weight": "vit",
    "patch_embed.proj.weight": "vit",
}
UNUSED = ("embeddings.mask_token",)  # only for pre-training


def recognise(keys: Collection[str]) -> bool:
    """Whether tensors with these names are in this format."""
    ends = (
        *("patch_embeddings.projection.weight", "patch_embeddings.weight"),
        *("patch_embedding.weight", "embedder.convolution.weight"),
    )
    return any(key.endswith(ends) for key in keys)


def read(tensors: Mapping[str, Tensor]) -> State:
    """The tensors under native names."""
    trunk: dict[str, Tensor] = {}
    prefixes = tuple(prefix for prefix, _, _ in FAMILIES.values())
    for key, tensor in tensors.items():
        prefix = next((p for p in prefixes if key.startswith(p)), "")
        trunk[key.removeprefix(prefix)] = tensor
    family = family_of(trunk)
    renamed = {_old_name(key, family): tensor for key, tensor in trunk.items() if key not in UNUSED}
    _, body, heads = FAMILIES[family]
    return rules.read(renamed, heads + body, "transformers")


def _old_name(key: str, family: str) -> str:
    table = NEXT_GENERATION + (NEXT_GENERATION_MLP if family in ("vit", "deit") else ())
    if family in ("bit", "siglip_vision_model", "dinov3_vit"):
        return key
    for pattern, replacement in table:
        key = pattern.sub(replacement, key)
    return key


def write(state: Mapping[str, Tensor], fields: Fields) -> State:
    """The tensors under this format's names."""
    if any(key.startswith("patch_embed.backbone.") for key in state):
        raise WeightsError(
            "transformers no longer has a hybrid ViT.",
            got="a model with a ResNet stem.",
            hint="--to timm or --to google.",
        )
    rules.require_known_parts(fields, "transformers")
    family = "dinov3_vit" if fields.get("position") == "rotary_2d" else family_of(state)
    if family in ("vit", "deit", "dinov2", "dinov2_with_registers"):
        rules.require(fields, "transformers", pool="token", position="learned", norm_after_pool=False, class_token=True)
    if family == "dinov3_vit":
        # The whole sequence is its output, so `pool` is the reader's choice.
        rules.require(fields, "transformers", norm_after_pool=False, class_token=True)
        if fields.get("layer_scale") is None:
            raise WeightsError("transformers' DINOv3 has a layer scale.", got="a model without one.", hint="--to timm.")
        state = {**state, "mask_token": torch.zeros_like(state["cls_token"])}  # only for pre-training
    if family.startswith("dinov2"):
        state = {**state, "mask_token": torch.zeros(1, state["norm.weight"].shape[0])}  # only for pre-training
        if fields.get("registers") and fields.get("position_prefix") == 0:
            # Their table has a row for the class token; a row of zeros changes nothing.
            state["pos_embed"] = torch.cat([torch.zeros_like(state["cls_token"]), state["pos_embed"]], dim=1)
    prefix, body, heads = FAMILIES[family]
    head_keys = [key for key in state if key.startswith(("head.", "head_dist."))]
    trunk = rules.write({k: t for k, t in state.items() if k not in head_keys}, body, fields, "transformers")
    head = rules.write({key: state[key] for key in head_keys}, heads, fields, "transformers")
    # A model without a classifier is saved as the bare trunk, which has no prefix.
    return {**({prefix + key: tensor for key, tensor in trunk.items()} if head else trunk), **head}


def family_of(keys: Collection[str]) -> str:
    """The model_type of tensors with these names, native or theirs."""
    return next((FAMILY_MARKS[mark] for mark in FAMILY_MARKS if mark in keys), "vit")
