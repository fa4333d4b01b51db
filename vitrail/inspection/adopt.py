"""Models of timm and transformers as Vitrail's own, the tensors shared, after a proof that both compute the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vitrail import catalogue, plug
from vitrail.adapt import check_fit
from vitrail.data.exchange import from_timm
from vitrail.data.transform import Preprocess
from vitrail.engine.exported import Exported
from vitrail.errors import InspectionError, SpecError, VitrailError
from vitrail.model import vit
from vitrail.spec import Spec
from vitrail.weights.rules import State
from vitrail.weights.source import FORMATS, format_named

POOLS = {"token": "token", "avg": "mean", "map": "attention"}
NEAR = 1e-3  # of the largest logit, by which two ways of computing may differ


def adopt(model: Any) -> Any:
    """The same model as Vitrail's; one that is Vitrail's already is only given a way to prepare pictures."""
    if isinstance(getattr(model, "spec", None), Spec):
        if getattr(model, "preprocess", None) is None:
            model.preprocess = catalogue.preprocess_for("", model.spec, None)
        if model.preprocess is None:
            raise InspectionError(
                "there is no picture that this model takes.",
                got=f"{model.spec.channels} channels.",
                hint="a model of one or three channels.",
            )
        return model
    if isinstance(model, Exported):
        raise InspectionError(
            "an exported model gives labels, and nothing of how it came to them.",
            got=f"{model.engine}.",
            hint="the run that it was exported from.",
        )
    if not isinstance(model, nn.Module):
        raise InspectionError(
            "this is no model.", got=f"a {type(model).__name__}.", hint="a model of Vitrail, timm or transformers."
        )
    try:
        made = _made(model)
    except (VitrailError, AttributeError, KeyError, IndexError, ValueError, RuntimeError) as error:
        said = error.wrong if isinstance(error, VitrailError) else f"{type(error).__name__}."
        raise InspectionError(
            f"this model is of no kind that Vitrail knows: {said}",
            got=f"a {type(model).__name__} of {type(model).__module__.partition('.')[0]}.",
            hint="a Vision Transformer or BiT of timm or transformers, with a classifier.",
        ) from None
    _prove(model, made)
    return made


def _made(model: Any) -> Any:
    tensors = model.state_dict()
    form = next((each for each in map(format_named, plug.entries(FORMATS)) if each.recognise(tensors.keys())), None)
    if form is None:
        raise InspectionError("its tensors have names of another kind.", got="", hint="")
    config = model.config.to_dict() if hasattr(model, "config") else {}
    facts = form.facts_from(config, tensors.keys()) if hasattr(form, "facts_from") else {}
    state = form.read(tensors)
    cut = getattr(model, "pretrained_cfg", None) or {}
    spec = _spec(model, state, facts, cut.get("architecture", ""))
    with catalogue.on_meta():
        made = catalogue.build(spec)
    check_fit(state, made.state_dict(), "a model of this form")
    made.load_state_dict(state, assign=True)
    made.name, made.changes = cut.get("architecture", ""), ()
    told: Preprocess | None = None
    if "mean" in cut:
        try:
            told = from_timm(cut)
        except SpecError:
            told = None
    made.preprocess = catalogue.preprocess_for("", spec, told)
    names = config.get("id2label") or {}
    if len(names) == spec.num_classes and not str(names.get(0, "")).startswith("LABEL_"):
        made.labels = tuple(str(names[number]) for number in range(spec.num_classes))
    return made.eval()


def _spec(model: Any, state: State, facts: dict[str, Any], name: str) -> Any:
    """The specification that the tensors, and the object that holds them, tell."""
    kernel = state.get("patch_embed.proj.weight")
    if kernel is None or kernel.shape[-1] == 1 or (not hasattr(model, "blocks") and "heads" not in facts):
        spec = catalogue.spec_named(name)  # hybrids and BiT are told by their names
        return spec.override({**facts, "num_classes": model.num_classes})
    fields: dict[str, Any] = {
        "stem": {"name": "patch", "patch": list(kernel.shape[2:])},
        "channels": kernel.shape[1],
        "width": kernel.shape[0],
        "depth": 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks.")),
        "hidden": state["blocks.0.mlp.fc1.weight"].shape[0],
        "num_classes": state["head.weight"].shape[0],
        "class_token": "cls_token" in state,
        "distilled": "dist_token" in state,
        "registers": state["reg_token"].shape[1] if "reg_token" in state else 0,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in state else None,
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "norm_after_pool": "fc_norm.weight" in state,
        "pre_logits": state["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in state else None,
        **facts,
    }
    if hasattr(model, "blocks"):  # timm's
        block = model.blocks[0]
        fields |= {
            "image_size": model.patch_embed.img_size,
            "heads": block.attn.num_heads,
            "norm_eps": block.norm1.eps,
            "pool": POOLS[model.global_pool],
            "activation": "gelu_tanh" if getattr(block.mlp.act, "approximate", "none") == "tanh" else "gelu",
        }
    grid = [side // cell for side, cell in zip(fields["image_size"], fields["stem"]["patch"], strict=True)]
    fields["position_prefix"] = state["pos_embed"].shape[1] - grid[0] * grid[1]
    return vit.Spec.parse(fields)


@torch.no_grad()
def _prove(model: Any, made: Any) -> None:
    """Refuse a model that computes something else than what it was taken for."""
    like = next(model.parameters())
    images = torch.randn(1, made.spec.channels, *made.spec.image_size, generator=torch.Generator().manual_seed(0))
    was_training = model.training
    model.eval()
    theirs = model(images.to(like))
    model.train(was_training)
    theirs = getattr(theirs, "logits", theirs)
    ours = made(images.to(like))
    gap = (ours - theirs).abs().max().item()
    if not gap <= NEAR * max(1.0, theirs.abs().max().item()):
        raise InspectionError(
            "this model computes something else than a Vision Transformer of its form.",
            got=f"logits that differ by {gap:.3g}.",
            hint="a model without changes of its own to what it computes.",
        )
