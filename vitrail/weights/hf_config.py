"""transformers' config.json and preprocessor_config.json of a Vision Transformer or BiT, written and read."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from vitrail.data.exchange import to_hf
from vitrail.data.transform import Preprocess
from vitrail.errors import SpecError, WeightsError
from vitrail.nn.rotary import BASE_2D
from vitrail.weights.rules import Fields

ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}  # theirs: ours
MAX_HEADS = 1024
ARCHITECTURES = {  # with and without a classifier
    "vit": ("ViTForImageClassification", "ViTModel"),
    "deit": ("DeiTForImageClassificationWithTeacher", "DeiTModel"),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersModel"),
    "dinov2": ("Dinov2Model", "Dinov2Model"),
    "dinov3_vit": ("DINOv3ViTModel", "DINOv3ViTModel"),
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
    if family == "dinov3_vit":
        extra = _dinov3_config(fields)
        del sizes["qkv_bias"]
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
        "image_size": rows if rows == columns else [rows, columns],
        "patch_size": patch[0],
        "hidden_act": "gelu_pytorch_tanh" if fields["activation"] == "gelu_tanh" else "gelu",
        **extra,
    }


def _dinov3_config(fields: Fields) -> dict[str, Any]:
    config = {
        "num_register_tokens": fields["registers"],
        "query_bias": fields["qkv_bias"] is not False,
        "key_bias": fields["qkv_bias"] is True,
        "value_bias": fields["qkv_bias"] is not False,
        "layerscale_value": fields["layer_scale"],
        "rope_theta": BASE_2D,
        "pos_embed_rescale": None,  # Vitrail trains without random coordinates
    }
    return {**config, "use_gated_mlp": True, "hidden_act": "silu"} if fields["mlp"] == "swiglu" else config


def _family_of_fields(fields: Fields) -> str:
    if "factor" in fields:
        return "bit"
    if fields["position"] == "rotary_2d":
        return "dinov3_vit"
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
    if any(key.endswith("embeddings.patch_embeddings.weight") for key in keys):
        fields["pool"] = "token"  # DINOv3's pooled output; timm's is the mean
    elif any(key.endswith("embeddings.register_tokens") for key in keys):
        fields["position_prefix"] = 1  # the class token has a position, the registers do not
    family = config.get("model_type")
    if not isinstance(family, str) or family not in ARCHITECTURES:
        return fields
    if family == "bit":
        for field, value in (("global_padding", None), ("embedding_dynamic_padding", False)):
            _refuse_unless(config, field, (value,))
        _refuse_unless(config, "layer_type", ("preactivation",))
        return fields
    if family == "dinov3_vit":
        _refuse_unless(config, "rope_theta", (BASE_2D,))
    fields |= _infer_activation(config, family)
    eps, heads, size = (config.get(key) for key in ("layer_norm_eps", "num_attention_heads", "image_size"))
    if isinstance(eps, float) and 0 < eps < 1:
        fields["norm_eps"] = eps
    if type(heads) is int and 0 < heads <= MAX_HEADS:
        fields["heads"] = heads
    sides = (size, size) if type(size) is int else size
    if isinstance(sides, list | tuple) and len(sides) == 2 and all(type(side) is int and side > 0 for side in sides):
        fields["image_size"] = tuple(sides)
    return fields


def _infer_activation(config: Mapping[str, Any], family: str) -> dict[str, str]:
    """The activation of an MLP that has a choice: a gated one has none."""
    if config.get("use_gated_mlp") is True:
        _refuse_unless(config, "hidden_act", ("silu",))
        return {}
    _refuse_unless(config, "hidden_act", tuple(ACTIVATIONS))
    # transformers' defaults, where the file says nothing.
    default = "gelu_pytorch_tanh" if family.startswith("siglip") else "gelu"
    return {"activation": ACTIVATIONS[config.get("hidden_act", default)]}


def _refuse_unless(config: Mapping[str, Any], field: str, allowed: tuple[object, ...]) -> None:
    if field in config and config[field] not in allowed:
        raise WeightsError(
            f"the config.json next to the weights asks for {field}={config[field]!r}, which Vitrail does not support.",
            hint=f"{field} set to {' or '.join(map(repr, allowed))}.",
        )
