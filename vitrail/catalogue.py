"""The catalogue: names to specifications, specifications to models, and weights put into them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import yaml
from torch.overrides import TorchFunctionMode

from vitrail import plug
from vitrail.adapt import HEADS, ChannelRule, adapt, check_fit
from vitrail.data.transform import Preprocess
from vitrail.errors import unknown_name
from vitrail.names import canonical
from vitrail.spec import Spec
from vitrail.tokens import cut
from vitrail.weights.source import Weights, load_weights

MODELS = "vitrail.model"
FILLERS = {"normal_", "uniform_", "zero_", "fill_", "erfinv_", "mul_", "add_", "clamp_"}
logger = logging.getLogger("vitrail")


class Entry(NamedTuple):
    """A model of the catalogue, counted."""

    name: str
    params: int
    gflops: float
    tokens: int
    input_size: tuple[int, int, int]
    checkpoints: tuple[str, ...]


def list_models(pattern: str = "") -> list[str]:
    """The names of the catalogue that contain `pattern`.

    A name beyond the list, such as `vit_small_patch4_32`, works too, if it follows the same grammar.
    """
    return sorted(name for name in _checkpoints() if pattern.lower() in name)


def describe(name: str) -> Entry:
    """A model's size and cost, counted from a model without memory."""
    spec = spec_named(name)
    with on_meta():
        model = build(spec)
    params = sum(parameter.numel() for parameter in model.parameters())
    size = (spec.channels, *spec.image_size)
    tags = _checkpoints().get(canonical(name), ())
    return Entry(canonical(name), params, model.flops() / 1e9, spec.layout.num_tokens, size, tuple(tags))


def preprocess_named(name: str) -> Preprocess:
    """How pictures are prepared for the usual checkpoints of a model."""
    spec = spec_named(name)
    table = _pages()[family_of(spec).__name__.rpartition(".")[2]]["preprocess"]
    fields = next(fields for part, fields in table.items() if part in canonical(name))
    return Preprocess.parse({"size": spec.image_size, **fields})


def _checkpoints() -> dict[str, list[str]]:
    """Each name of the catalogue, with the tags of its checkpoints on the hub."""
    return {name: tags for page in _pages().values() for name, tags in page["names"].items()}


@cache
def _pages() -> dict[str, dict[str, Any]]:
    """The catalogue's page of each architecture, which lies beside its file."""
    folder = files(MODELS)
    return {
        family: yaml.safe_load(folder.joinpath(f"{family}.yaml").read_text(encoding="utf-8"))
        for family in plug.entries(MODELS)
    }


def timm_name(name: str, spec: Any) -> str:
    """The architecture by which timm builds a model: its own name if timm has it, else that of one of the same form.

    Sizes, patches and pooling of the latter are told by arguments.
    """
    if getattr(getattr(spec, "stem", None), "name", "") != "patch" or (name in _checkpoints() and "_mu_" not in name):
        return name
    return "deit_base_distilled_patch16_224" if spec.distilled else "vit_base_patch16_224"


def spec_named(name: str) -> Any:
    """The specification of a model by any of its names, or an error that lists the nearest."""
    for family in plug.entries(MODELS):
        spec = plug.load(MODELS, family).spec_named(canonical(name))
        if spec is not None:
            return spec
    raise unknown_name("model", name, list_models(), more="vitrail models shows all of them.")


def family_of(spec: Spec) -> ModuleType:
    """The module of the architecture that a specification belongs to."""
    return plug.load(MODELS, type(spec).__module__.rpartition(".")[2])


def build(spec: Spec) -> Any:
    """A model with fresh weights."""
    return family_of(spec).Model(spec)


class _NoFilling(TorchFunctionMode):
    """Leaves initialisers out: tensors on the meta device have nothing to fill, and pretending takes its time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init" or getattr(func, "__name__", "") in FILLERS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Models made in here have shapes but no memory."""
    with torch.device("meta"), _NoFilling():
        yield


def create_model(
    name: str | Spec,
    *,
    weights: str | Path | None = None,
    channel_rule: ChannelRule = "sum",
    weights_grid: tuple[int, int] | None = None,
    **fields: Any,
) -> Any:
    """A model by name or specification, with fields of it changed, and with weights if asked for.

    `weights` is a file, a folder or a name on the hub, in any format that Vitrail reads. The number of classes is the
    file's unless `num_classes` is given; input channels, classes and the position table are adapted where they
    differ. What was changed stands in `model.changes` and in the log, how pictures are prepared for it in
    `model.preprocess`. As always in PyTorch, the model is in training mode; `.eval()` ends that.
    """
    spec: Any = spec_named(name) if isinstance(name, str) else name
    spec = spec.override(fields) if fields else spec
    label = canonical(name) if isinstance(name, str) else ""
    if weights is None:
        model = build(spec)
        model.name, model.changes, model.preprocess = label, (), preprocess_for(label, spec, None)
        return model
    loaded = load_weights(weights)
    spec, state, changes = _follow(spec, loaded, fields)
    with on_meta():
        model = build(spec)
    wanted = model.state_dict()
    table = spec.table_layout if "pos_embed" in wanted else None
    size = loaded.facts.get("image_size")
    if (
        table
        and size
        and weights_grid is None
        and all(side % step == 0 for side, step in zip(size, spec.stem.cell, strict=True))
    ):
        rows, columns = cut(size, spec.stem.cell)
        weights_grid = (rows, columns)
    state, more = adapt(
        state,
        wanted,
        first_weight=model.first_weight,
        table=table,
        cell=spec.stem.cell if table else (),
        resize_rule=spec.resize_rule if table else "bicubic",
        channel_rule=channel_rule,
        weights_grid=weights_grid,
    )
    check_fit(state, wanted, label or "this specification")
    model.load_state_dict(state, assign=True)
    model.requires_grad_(True)
    model.name, model.changes = label, (*changes, *more)
    model.preprocess = preprocess_for(label, spec, loaded.preprocess)
    if label and model.preprocess != preprocess_for(label, spec, None):
        model.changes += ("pictures prepared as the file or its format says, not as is usual for this name",)
    for change in model.changes:
        logger.info("%s: %s", label or "model", change)
    return model


def preprocess_for(name: str, spec: Any, told: Preprocess | None) -> Preprocess | None:
    """How pictures are prepared for a model: as its files tell, else as is usual for its name; in the model's size."""
    if spec.channels not in (1, 3):
        return None
    usual = (preprocess_named(name) if name else Preprocess()).override({"size": spec.image_size})
    told = usual if told is None else told.override({"size": spec.image_size})
    # transformers keeps the size before the crop, 248, which is 0.9 as well as 0.9032.
    if told.target(1000, 1000) == usual.target(1000, 1000) and told.override({"crop": usual.crop}) == usual:
        told = usual
    if spec.channels == told.channels:
        return told
    num = spec.channels
    means = [[sum(values) / len(values)] * num for values in (told.mean, told.std)]
    return told.override({"mode": "grey" if num == 1 else "rgb", "mean": means[0], "std": means[1]})


def _follow(spec: Any, loaded: Weights, fields: dict[str, Any]) -> tuple[Any, dict[str, torch.Tensor], list[str]]:
    """The specification as the file has it, where the caller has not said otherwise."""
    state, changes, follow = dict(loaded.state), [], {}
    head = state.get("head.weight", state.get("head.fc.weight"))
    num_classes = head.shape[0] if head is not None and head.ndim > 1 else None
    if num_classes is not None and num_classes != spec.num_classes:
        if "num_classes" in fields:
            state = {key: tensor for key, tensor in state.items() if not key.startswith(HEADS)}
            changes.append(f"the classifier of {num_classes} classes left out")
        else:
            follow["num_classes"] = num_classes
            changes.append(f"{num_classes} classes, as in the file")
    pre_logits = state.get("pre_logits.fc.weight")
    if pre_logits is not None and getattr(spec, "pre_logits", 0) is None:
        if num_classes is not None and not any(key.startswith(HEADS) for key in state):
            state = {key: tensor for key, tensor in state.items() if not key.startswith("pre_logits.")}
            changes.append("the pre_logits layer left out, as the paper does for fine-tuning")
        else:
            follow["pre_logits"] = pre_logits.shape[0] if pre_logits.ndim else 1
            changes.append("the pre_logits layer kept, as in the file")
    for field, value in loaded.facts.items():
        # The size is the caller's, or the name's: positions are resized to it.
        known = field in type(spec).model_fields and field != "image_size" and field not in fields
        if known and getattr(spec, field) != value:
            follow[field] = value
            changes.append(f"{field}={value}, as in the file or the config.json beside it")
    return spec.override(follow) if follow else spec, state, changes
