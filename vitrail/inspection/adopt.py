"""Rebuilds timm and transformers models as Vitrail models that share their tensors, and checks that outputs agree."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vitrail import catalogue, plug
from vitrail.about import About
from vitrail.adapt import check_fit
from vitrail.contract import Classifier, ImageSpec
from vitrail.data.exchange import from_timm
from vitrail.data.transform import Preprocess
from vitrail.engine.exported import ExportedModel
from vitrail.errors import InspectionError, SpecError, VitrailError
from vitrail.model import vit
from vitrail.weights.rules import State
from vitrail.weights.source import FORMATS, get_format

POOLS = {"token": "token", "avg": "mean", "map": "attention"}
TOLERANCE = 1e-3  # relative to the largest logit


def adopt(model: object) -> Classifier:
    """Return the model as a Vitrail model; one that already is only gets a `preprocess` if it has none."""
    model = getattr(model, "_orig_mod", model)  # torch.compile wraps it
    if isinstance(model, Classifier):
        if model.about.preprocess is None:
            model.describe(preprocess=catalogue.preprocess_for("", model.spec, None))
        if model.about.preprocess is None:
            raise InspectionError(
                "this model does not take images.",
                got=f"a model that takes {' and '.join(model.TAKES)} of {model.spec.channels} channels.",
                hint="a model that takes images of one or three channels.",
            )
        return model
    if isinstance(model, ExportedModel):
        raise exported_error(model)
    if not isinstance(model, nn.Module):
        raise InspectionError(
            "this is not a model.", got=f"a {type(model).__name__}.", hint="a Vitrail, timm or transformers model."
        )
    try:
        rebuilt = _rebuild(model)
    except (VitrailError, AttributeError, KeyError, IndexError, ValueError, RuntimeError) as error:
        reason = error.wrong if isinstance(error, VitrailError) else f"{type(error).__name__}."
        raise InspectionError(
            f"this architecture is not supported: {reason}",
            got=f"a {type(model).__name__} from {type(model).__module__.partition('.')[0]}.",
            hint="a Vision Transformer or BiT with a classifier, from timm or transformers.",
        ) from None
    _check_outputs(model, rebuilt)
    return rebuilt


def exported_error(model: ExportedModel) -> InspectionError:
    """The error for a model that has no features to show."""
    return InspectionError(
        "an exported model returns predictions only and cannot be explained.",
        got=f"{model.engine}.",
        hint="the run that it was exported from.",
    )


def _rebuild(foreign: Any) -> Classifier:
    tensors = foreign.state_dict()
    form = next((each for each in map(get_format, plug.entries(FORMATS)) if each.recognise(tensors.keys())), None)
    if form is None:
        raise InspectionError("its tensor names are unknown.", got="", hint="")
    config = foreign.config.to_dict() if hasattr(foreign, "config") else {}
    facts = form.infer_fields(config, tensors.keys()) if hasattr(form, "infer_fields") else {}
    state = form.read(tensors)
    pretrained_cfg = getattr(foreign, "pretrained_cfg", None) or {}
    spec = _infer_spec(foreign, state, facts, pretrained_cfg.get("architecture", ""))
    with catalogue.on_meta():
        rebuilt = catalogue.build(spec)
    check_fit(state, rebuilt.state_dict(), "a model of this form")
    rebuilt.load_state_dict(state, assign=True)
    preprocess: Preprocess | None = None
    if "mean" in pretrained_cfg:
        try:
            preprocess = from_timm(pretrained_cfg)
        except SpecError:
            preprocess = None
    rebuilt.about = About(
        name=pretrained_cfg.get("architecture", ""),
        preprocess=catalogue.preprocess_for("", spec, preprocess),
        labels=_class_names(foreign, config, pretrained_cfg, spec.num_classes),
    )
    return rebuilt.eval()


def _class_names(foreign: Any, config: dict[str, Any], pretrained_cfg: dict[str, Any], num: int) -> tuple[str, ...]:
    """The names of the classes: transformers' `id2label`, timm's `label_names` or an attribute `labels`; or none."""
    by_number = config.get("id2label") or {}
    names: Any = [by_number[number] for number in sorted(by_number)]
    names = names or pretrained_cfg.get("label_names") or getattr(foreign, "labels", ())
    if not isinstance(names, list | tuple) or not names or len(names) != num or str(names[0]).startswith("LABEL_"):
        return ()
    return tuple(map(str, names))


def _infer_spec(foreign: Any, state: State, facts: dict[str, Any], name: str) -> ImageSpec:
    """The spec, inferred from the tensors and from the module that holds them."""
    kernel = state.get("patch_embed.proj.weight")
    if kernel is None or kernel.shape[-1] == 1 or (not hasattr(foreign, "blocks") and "heads" not in facts):
        spec = catalogue.spec_named(name)  # hybrids and BiT are identified by name
        return spec.override({**facts, "num_classes": foreign.num_classes})
    fields: dict[str, Any] = {
        "stem": {"name": "patch", "patch": list(kernel.shape[2:])},
        "channels": kernel.shape[1],
        "width": kernel.shape[0],
        "depth": 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks.")),
        "hidden": state["blocks.0.mlp.fc2.weight"].shape[1],
        "mlp": "swiglu" if "blocks.0.mlp.fc1_g.weight" in state else "mlp",
        "num_classes": state["head.weight"].shape[0],
        "class_token": "cls_token" in state,
        "distilled": "dist_token" in state,
        "registers": state["reg_token"].shape[1] if "reg_token" in state else 0,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in state else None,
        "qkv_bias": "qv" if "blocks.0.attn.qkv.q_bias" in state else "blocks.0.attn.qkv.bias" in state,
        "norm_after_pool": "fc_norm.weight" in state,
        "pre_logits": state["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in state else None,
        **facts,
    }
    if hasattr(foreign, "blocks"):  # timm
        block = foreign.blocks[0]
        fields |= {
            "image_size": foreign.patch_embed.img_size,
            "heads": block.attn.num_heads,
            "norm_eps": block.norm1.eps,
            "pool": POOLS[foreign.global_pool],
            "activation": "gelu_tanh" if getattr(block.mlp.act, "approximate", "none") == "tanh" else "gelu",
        }
    if type(getattr(foreign, "rope", None)).__name__ == "RotaryEmbeddingDinoV3":  # timm has others too
        fields["position"] = "rotary_2d"
    else:
        grid = [side // cell for side, cell in zip(fields["image_size"], fields["stem"]["patch"], strict=True)]
        fields["position_prefix"] = state["pos_embed"].shape[1] - grid[0] * grid[1]
    return vit.Spec.parse(fields)


@torch.no_grad()
def _check_outputs(foreign: nn.Module, rebuilt: Classifier) -> None:
    """Reject a model whose logits differ from those of its rebuilt version."""
    like = next(foreign.parameters())
    images = torch.randn(1, rebuilt.spec.channels, *rebuilt.spec.image_size, generator=torch.Generator().manual_seed(0))
    was_training = foreign.training
    foreign.eval()
    theirs = foreign(images.to(like))
    foreign.train(was_training)
    theirs = getattr(theirs, "logits", theirs)
    ours = rebuilt(images.to(like))
    gap = (ours - theirs).abs().max().item()
    if not gap <= TOLERANCE * max(1.0, theirs.abs().max().item()):
        raise InspectionError(
            "this model's outputs differ from those of a Vision Transformer with its weights.",
            got=f"logits that differ by {gap:.3g}.",
            hint="a model with an unmodified forward pass.",
        )
