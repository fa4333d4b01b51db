"""Hugging Face transformers' names for ViT, DeiT, DINOv2 with registers, SigLIP's vision tower and BiT.

Two generations are read: `encoder.layer.N.attention.attention.query` (still used on disk) and
`layers.N.attention.q_proj` (the module names since transformers 5). The first is written, because all releases open it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.data.exchange import to_hf
from vitrail.data.transform import Preprocess
from vitrail.errors import SpecError, WeightsError
from vitrail.weights import rules
from vitrail.weights.rules import Fields, Rule, State, TensorTransform, concat, layer, rule

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
    "siglip_vision_model": ("vision_model.", SIGLIP, []),
    "bit": ("bit.", BIT, layer("head.fc", "classifier.1", LINEAR_AS_CONV)),
    "vit": ("vit.", VIT, layer("head", "classifier")),
}
FAMILY_MARKS = {  # key on disk or natively: family; the first that occurs decides
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
    ends = ("patch_embeddings.projection.weight", "patch_embedding.weight", "embedder.convolution.weight")
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
    if family in ("bit", "siglip_vision_model"):
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
    family = family_of(state)
    if family in ("vit", "deit", "dinov2", "dinov2_with_registers"):
        rules.require(fields, "transformers", pool="token", position="learned", norm_after_pool=False, class_token=True)
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


ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}  # theirs: ours
MAX_HEADS = 1024
ARCHITECTURES = {  # with and without a classifier
    "vit": ("ViTForImageClassification", "ViTModel"),
    "deit": ("DeiTForImageClassificationWithTeacher", "DeiTModel"),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersModel"),
    "dinov2": ("Dinov2Model", "Dinov2Model"),
    "siglip_vision_model": ("SiglipVisionModel", "SiglipVisionModel"),
    "bit": ("BitForImageClassification", "BitModel"),
}
CONFIG_KEYS = {  # ours: theirs
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "norm_eps": "layer_norm_eps",
    "qkv_bias": "qkv_bias",
}


def config_files(fields: Fields, name: str, preprocess: Preprocess | None) -> dict[str, Any]:  # noqa: ARG001 - as timm's
    """The config.json and preprocessor_config.json that `from_pretrained` needs to open the folder."""
    files = {"config.json": _build_config(fields)}
    if preprocess is not None:
        with contextlib.suppress(SpecError):  # their config cannot express a non-square size or one channel
            files["preprocessor_config.json"] = to_hf(preprocess)
    return files


def _build_config(fields: Fields) -> dict[str, Any]:
    family = _family_of_fields(fields)
    shared: dict[str, Any] = {
        "model_type": family,
        "architectures": [ARCHITECTURES[family][0 if fields["num_classes"] else 1]],
        "num_channels": fields["channels"],
    }
    if fields["num_classes"]:
        labels = {str(index): f"LABEL_{index}" for index in range(fields["num_classes"])}
        shared.update(id2label=labels, label2id={label: int(index) for index, label in labels.items()})
    if family == "bit":
        widths = [256 * fields["factor"] * 2**stage for stage in range(4)]
        sizes = {"embedding_size": 64 * fields["factor"], "hidden_sizes": widths, "depths": list(fields["layers"])}
        return {**shared, **sizes, "layer_type": "preactivation"}
    rows, columns = fields["image_size"]
    sizes = {theirs: fields[ours] for ours, theirs in CONFIG_KEYS.items()}
    extra: dict[str, Any] = {}
    if family.startswith("dinov2"):
        extra = {"mlp_ratio": fields["hidden"] // fields["width"]}
        if fields["registers"]:
            extra["num_register_tokens"] = fields["registers"]
        del sizes["intermediate_size"]
    if family.startswith(("siglip", "dinov2")) and rows != columns:
        raise WeightsError(
            f"transformers' {family} takes only square images.", got=f"{rows} x {columns}.", hint="--to timm."
        )
    patch = fields["stem"]["patch"]
    if len(set(patch)) > 1:
        raise WeightsError("transformers supports only square patches.", got=f"{patch}.", hint="--to timm.")
    if fields["pre_logits"]:
        extra = {"pooler_output_size": fields["pre_logits"], "pooler_act": "tanh"}
    return {
        **shared,
        **sizes,
        **extra,
        "image_size": rows if rows == columns else [rows, columns],
        "patch_size": patch[0],
        "hidden_act": "gelu_pytorch_tanh" if fields["activation"] == "gelu_tanh" else "gelu",
    }


def _family_of_fields(fields: Fields) -> str:
    if "factor" in fields:
        return "bit"
    if fields["distilled"]:
        return "deit"
    if fields["registers"]:
        return "dinov2_with_registers"
    if fields["layer_scale"] is not None:
        return "dinov2"
    return "siglip_vision_model" if fields["pool"] == "attention" else "vit"


def infer_fields(config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The fields of the specification that tensor names and a config.json determine."""
    fields: dict[str, Any] = {}
    if any(key.endswith("embeddings.register_tokens") for key in keys):
        fields["position_prefix"] = 1  # the class token has a position, the registers do not
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        return fields
    if family == "bit":
        for field, value in (("global_padding", None), ("embedding_dynamic_padding", False)):
            _refuse_unless(config, field, (value,))
        _refuse_unless(config, "layer_type", ("preactivation",))
        return fields
    _refuse_unless(config, "hidden_act", tuple(ACTIVATIONS))
    # transformers' defaults, where the file says nothing.
    fields["activation"] = ACTIVATIONS[
        config.get("hidden_act", "gelu_pytorch_tanh" if family.startswith("siglip") else "gelu")
    ]
    eps, heads, size = (config.get(key) for key in ("layer_norm_eps", "num_attention_heads", "image_size"))
    if isinstance(eps, float) and 0 < eps < 1:
        fields["norm_eps"] = eps
    if type(heads) is int and 0 < heads <= MAX_HEADS:
        fields["heads"] = heads
    sides = (size, size) if type(size) is int else size
    if isinstance(sides, list | tuple) and len(sides) == 2 and all(type(side) is int and side > 0 for side in sides):
        fields["image_size"] = tuple(sides)
    return fields


def _refuse_unless(config: Mapping[str, Any], field: str, allowed: tuple[object, ...]) -> None:
    if field in config and config[field] not in allowed:
        raise WeightsError(
            f"the config.json next to the weights asks for {field}={config[field]!r}, which Vitrail does not support.",
            hint=f"{field} set to {' or '.join(map(repr, allowed))}.",
        )
