"""timm's names (vision_transformer.py, vision_transformer_hybrid.py, resnetv2.py), which are Vitrail's own.

DINOv3, the ViT with rotary positions, is in timm's eva.py, where a few tensors have other names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from vitrail.data.exchange import to_timm
from vitrail.data.transform import Preprocess
from vitrail.errors import WeightsError
from vitrail.weights import rules
from vitrail.weights.rules import Fields, State

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
BLOCK = re.compile(r"(blocks\.\d+)\.(.+)")
EVA_NAMES = {  # in each block, ours: theirs
    "ls1.gamma": "gamma_1",
    "ls2.gamma": "gamma_2",
    "attn.qkv.q_bias": "attn.q_bias",
    "attn.qkv.v_bias": "attn.v_bias",
}
MARKS = ("patch_embed.proj.weight", "stages.0.blocks.0.conv1.weight")
OWN_MARKS = ("cross.0.attn.kv.weight",)
"""Of architectures that timm lacks: the weights of runs are read, but not written for timm."""


def recognise(keys: Collection[str]) -> bool:
    """Whether tensors with these names are in this format."""
    return any(mark in keys for mark in MARKS + OWN_MARKS)


def read(tensors: Mapping[str, Tensor]) -> State:
    """The tensors under native names."""
    return _rename(tensors, {theirs: ours for ours, theirs in EVA_NAMES.items()})


def _rename(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> State:
    """Rename tensors of the blocks."""
    return {
        BLOCK.sub(lambda match: f"{match[1]}.{names.get(match[2], match[2])}", key): tensor
        for key, tensor in tensors.items()
    }


def write(state: Mapping[str, Tensor], fields: Fields) -> State:
    """The tensors under this format's names."""
    if not any(mark in state for mark in MARKS):
        raise WeightsError(
            "timm has no place for this architecture.",
            got=f"tensors such as {min(state)}.",
            hint="a run, which stores the weights of any model.",
        )
    if any(key.startswith("pre_logits.") for key in state):
        raise WeightsError(
            "timm has no place for the pre_logits layer.",
            hint="--to google or --to torchvision, which have one.",
        )
    if fields.get("position") == "rotary_2d":
        has_bias = fields["qkv_bias"] is not False
        rules.require(fields, "timm", qkv_bias="qv" if has_bias else False, distilled=False, activation="gelu")
        return _rename(state, EVA_NAMES)
    has_bias = fields.get("qkv_bias") is not False
    rules.require(fields, "timm", qkv_bias=has_bias, mlp="mlp")
    if fields.get("position") in ("sincos_1d", "sincos_2d"):
        raise WeightsError(
            "timm has no place for fixed position embeddings.",
            got=f"position={fields['position']}.",
            hint="position=learned.",
        )
    tokens = sum(state[key].shape[1] for key in ("cls_token", "dist_token", "reg_token") if key in state)
    if fields.get("position_prefix") in (None, 0, tokens):
        return dict(state)
    # transformers' registers: only the class token has a row. If it is zero, dropping it changes nothing.
    if fields["position_prefix"] == 1 and not state["pos_embed"][:, 0].any():
        return {**state, "pos_embed": state["pos_embed"][:, 1:].contiguous()}
    raise WeightsError(
        "timm gives positions to all prefix tokens or to none of them.",
        got=f"position_prefix={fields['position_prefix']}.",
        hint="--to hf.",
    )


def config_files(fields: Fields, name: str, preprocess: Preprocess | None) -> dict[str, Any]:
    """The config.json that `timm.create_model("local-dir:FOLDER", pretrained=True)` needs to open the folder."""
    if not name:
        raise WeightsError(
            "a folder for timm needs the name of its architecture.",
            got="a model built from a specification.",
            hint="a file instead of a folder.",
        )
    # Without num_classes: timm reads it below, and transformers, which wraps timm, would pass it twice.
    args: dict[str, Any] = {"in_chans": fields["channels"]}
    if "stem" in fields:
        args |= {
            "img_size": list(fields["image_size"]),
            "embed_dim": fields["width"],
            "depth": fields["depth"],
            "num_heads": fields["heads"],
            "mlp_ratio": fields["hidden"] / fields["width"],
            "qkv_bias": fields["qkv_bias"] is not False,
            "init_values": fields["layer_scale"],
            "class_token": fields["class_token"],
            "global_pool": {"token": "token", "mean": "avg", "attention": "map"}[fields["pool"]],
            **(_eva_args(fields) if fields["position"] == "rotary_2d" else _vit_args(fields)),
        }
        if fields["stem"]["name"] == "patch":
            args["patch_size"] = fields["stem"]["patch"]
    pretrained = {
        "custom_load": False,
        "num_classes": fields["num_classes"],
        "input_size": [fields["channels"], *fields["image_size"]],
        **({} if preprocess is None else to_timm(preprocess)),
    }
    config = {
        "architecture": name,
        "num_classes": fields["num_classes"],
        "model_args": args,
        "pretrained_cfg": pretrained,
    }
    return {"config.json": config}


def _vit_args(fields: Fields) -> dict[str, Any]:
    return {
        "reg_tokens": fields["registers"],
        "no_embed_class": fields["position_prefix"] == 0 or bool(fields["registers"] and fields["position_prefix"]),
        "pos_embed": "none" if fields["position"] == "none" else "learn",
        "fc_norm": fields["norm_after_pool"],
        "act_layer": fields["activation"],
    }


def _eva_args(fields: Fields) -> dict[str, Any]:
    return {
        "num_reg_tokens": fields["registers"],
        "use_fc_norm": fields["norm_after_pool"],
        "swiglu_mlp": fields["mlp"] == "swiglu",
        "swiglu_align_to": 1,  # as many hidden units as stated; 0 would fuse two layers
    }
