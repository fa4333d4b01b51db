"""timm's names (vision_transformer.py, vision_transformer_hybrid.py, resnetv2.py), which are Vitrail's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from vitrail.data.exchange import to_timm
from vitrail.data.transform import Preprocess
from vitrail.errors import WeightsError
from vitrail.weights import rules
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
    rules.require(facts, "timm")
    if facts.get("position") in ("sincos_1d", "sincos_2d"):
        raise WeightsError(
            "timm has no place for fixed positions.", got=f"position={facts['position']}.", hint="position=learned."
        )
    tokens = sum(state[key].shape[1] for key in ("cls_token", "dist_token", "reg_token") if key in state)
    if facts.get("position_prefix") in (None, 0, tokens):
        return dict(state)
    # transformers' registers: the class token alone has a row. Where it is zero, leaving it out changes nothing.
    if facts["position_prefix"] == 1 and not state["pos_embed"][:, 0].any():
        return {**state, "pos_embed": state["pos_embed"][:, 1:].contiguous()}
    raise WeightsError(
        "timm gives positions to all prefix tokens or to none.",
        got=f"position_prefix={facts['position_prefix']}.",
        hint="--to hf.",
    )


def beside(facts: Facts, name: str, preprocess: Preprocess | None) -> dict[str, Any]:
    """timm's config.json, with which `timm.create_model("local-dir:FOLDER", pretrained=True)` opens the folder."""
    if not name:
        raise WeightsError(
            "a folder for timm needs the name of its architecture.",
            got="a model made from a specification.",
            hint="a file instead of a folder.",
        )
    # Not num_classes, which timm reads below, and which transformers, wrapping timm's model, gives a second time.
    args: dict[str, Any] = {"in_chans": facts["channels"]}
    if "stem" in facts:
        args |= {
            "img_size": list(facts["image_size"]),
            "embed_dim": facts["width"],
            "depth": facts["depth"],
            "num_heads": facts["heads"],
            "mlp_ratio": facts["hidden"] / facts["width"],
            "qkv_bias": facts["qkv_bias"],
            "init_values": facts["layer_scale"],
            "class_token": facts["class_token"],
            "reg_tokens": facts["registers"],
            "no_embed_class": facts["position_prefix"] == 0 or bool(facts["registers"] and facts["position_prefix"]),
            "pos_embed": "none" if facts["position"] == "none" else "learn",
            "global_pool": {"token": "token", "mean": "avg", "attention": "map"}[facts["pool"]],
            "fc_norm": facts["norm_after_pool"],
            "act_layer": facts["activation"],
        }
        if facts["stem"]["name"] == "patch":
            args["patch_size"] = facts["stem"]["patch"]
    pretrained = {
        "custom_load": False,
        "num_classes": facts["num_classes"],
        "input_size": [facts["channels"], *facts["image_size"]],
        **({} if preprocess is None else to_timm(preprocess)),
    }
    config = {
        "architecture": name,
        "num_classes": facts["num_classes"],
        "model_args": args,
        "pretrained_cfg": pretrained,
    }
    return {"config.json": config}
