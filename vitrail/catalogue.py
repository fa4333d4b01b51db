"""The catalogue: from names to specifications, to models, to models with weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import yaml
from torch.overrides import TorchFunctionMode

from vitrail import machine, plug
from vitrail.about import About
from vitrail.adapt import HEADS, ChannelRule, adapt, check_fit
from vitrail.contract import Classifier, ImageSpec
from vitrail.data.preparation import InputPreprocess
from vitrail.data.table import IMAGE
from vitrail.data.transform import Preprocess
from vitrail.errors import ShapeError, SpecError, unknown_name
from vitrail.names import canonical
from vitrail.spec import Spec
from vitrail.tokens import cut
from vitrail.weights.source import Weights, load_weights

MODELS, PREPARATIONS = "vitrail.model", "vitrail.data.prepare"
IN_PLACE = {"normal_", "uniform_", "zero_", "fill_", "erfinv_", "mul_", "add_", "clamp_"}  # used by initialisers
COST_SIZES = (224, 448, 896)
NOT_IN_TIMM = ("_mu_", "_conv", "linear_", "resnet26", "san10_", "perceiver_")  # parts of names
TIMM_DEFAULTS = ("vit_base_patch16_224", "deit_base_distilled_patch16_224")
logger = logging.getLogger("vitrail")


class Cost(NamedTuple):
    """What an image of one size costs a model."""

    image_size: int
    tokens: int
    gflops: float


class ModelInfo(NamedTuple):
    """The size and cost of a model, and its known checkpoints."""

    name: str
    params: int
    gflops: float
    tokens: int
    input_size: tuple[int, ...]
    checkpoints: tuple[str, ...]
    costs: tuple[Cost, ...] = ()
    """At 224, 448 and 896 pixels, where the model takes images of these sizes."""


def list_models(pattern: str = "") -> list[str]:
    """List the catalogue's names that contain `pattern`.

    Unlisted names that follow the same grammar work too, such as `vit_small_patch4_32`.
    """
    return sorted(name for name in _checkpoints() if pattern.lower() in name)


def describe(name: str, words: Sequence[str] = ()) -> ModelInfo:
    """Count a model's parameters and FLOPs on the meta device; `words` are `key=value` overrides."""
    spec = spec_named(name).override_words(words)
    with on_meta():
        model = build(spec)
    params = sum(parameter.numel() for parameter in model.parameters())
    size = (spec.channels, *spec.image_size)
    tags = _checkpoints().get(canonical(name), ())
    tokens, gflops = spec.layout.num_tokens, model.flops() / 1e9
    return ModelInfo(canonical(name), params, gflops, tokens, size, tuple(tags), tuple(_costs(model)))


def _costs(model: Classifier) -> Iterator[Cost]:
    """What images of other sizes cost, if the model takes them; one with a single cell has a weight for each pixel."""
    spec = model.spec
    for size in COST_SIZES if spec.layout.num_cells > 1 and spec.takes == IMAGE else ():
        try:
            model.spec = spec.override({"image_size": size})
        except (ShapeError, SpecError):  # the patch does not divide it, or the grid is smaller than the window
            continue
        yield Cost(size, model.spec.layout.num_tokens, model.flops() / 1e9)


def preprocess_named(name: str) -> Preprocess:
    """Return the preprocessing of a model's usual checkpoints."""
    spec = spec_named(name)
    table = _pages()[family_of(spec).__name__.rpartition(".")[2]]["preprocess"]
    fields = next(fields for part, fields in table.items() if part in canonical(name))
    return Preprocess.parse({"size": spec.image_size, **fields})


def _checkpoints() -> dict[str, list[str]]:
    """Map each name of the catalogue to the tags of its checkpoints on the hub."""
    return {name: tags for page in _pages().values() for name, tags in page["names"].items()}


@cache
def _pages() -> dict[str, dict[str, Any]]:
    """Read the YAML page beside each file of a classifier; models of text have none."""
    folder = files(MODELS)
    pages = {family: folder.joinpath(f"{family}.yaml") for family in plug.entries(MODELS)}
    return {
        family: yaml.safe_load(page.read_text(encoding="utf-8")) for family, page in pages.items() if page.is_file()
    }


def timm_name(name: str, spec: Any) -> str:
    """Return the name under which timm builds a model: its own if timm has it, else one of the same architecture.

    The latter takes its size, patch and pooling as arguments. The name is empty if timm has no such architecture.
    """
    if getattr(spec, "distilled", False) and (spec.registers or spec.position != "learned"):
        return ""
    listed = [each for each in _checkpoints() if not any(part in each for part in NOT_IN_TIMM)]
    preferred = [each for each in (name, *TIMM_DEFAULTS) if each in listed]
    names = (each for each in (*preferred, *listed) if _timm_constants(spec_named(each)) == _timm_constants(spec))
    return next(names, "")


def _timm_constants(spec: Any) -> tuple[Any, ...]:
    """Return what timm's arguments cannot change: a ResNet's sizes, the distillation token, rotary positions."""
    stem = getattr(spec, "stem", None)
    if stem is None:
        return type(spec), getattr(spec, "layers", ()), getattr(spec, "factor", 0)
    stem = stem if stem.name == "hybrid" else stem.name
    return type(spec), stem, spec.distilled, spec.attention, spec.position == "rotary_2d"


def spec_named(name: str) -> ImageSpec:
    """Return the specification of a model by any of its names; an unknown name's error lists the nearest ones."""
    try:
        for family in _pages():
            spec = plug.load(MODELS, family).spec_named(canonical(name))
            if spec is not None:
                return spec
    except ShapeError:  # a name of the right form with an impossible size, so probably misspelt
        pass
    raise unknown_name("model", name, list_models(), more="vitrail models lists them all.")


def family_of(spec: Spec) -> ModuleType:
    """Return the module of the architecture that a specification belongs to."""
    return plug.load(MODELS, type(spec).__module__.rpartition(".")[2])


def build(spec: Spec) -> Any:
    """Build a model with freshly initialised weights: a classifier for a specification of the catalogue."""
    machine.avoid_broken_tiles()
    return family_of(spec).Model(spec)


class _SkipInit(TorchFunctionMode):
    """Skips initialisers of meta tensors: they have no storage to fill, and going through the motions takes time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init" or getattr(func, "__name__", "") in IN_PLACE:
            tensor = args[0] if args else (kwargs or {}).get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Build models on the meta device: they have shapes, but no memory."""
    with torch.device("meta"), _SkipInit():
        yield


def create_model(
    name: str | Spec,
    *,
    weights: str | Path | None = None,
    channel_rule: ChannelRule = "sum",
    weights_grid: tuple[int, ...] | None = None,
    **fields: Any,
) -> Classifier:
    """Create a model by name or specification; `fields` override those of the specification.

    `weights` is a file, a folder or a name on the hub, in any format that Vitrail reads. Unless `num_classes` is set,
    the number of classes is the file's. Input channels, classifier and position table are adapted where they differ;
    `model.changes` and the log list the changes, and `model.preprocess` holds the preprocessing. As always in PyTorch,
    the model starts in training mode; call `.eval()` for inference.
    """
    spec: Any = spec_named(name) if isinstance(name, str) else name
    spec = spec.override(fields) if fields else spec
    label = canonical(name) if isinstance(name, str) else ""
    if weights is None:
        model = build(spec)
        model.about = About(name=label, preprocess=preprocess_for(label, spec, None))
        return model
    loaded = load_weights(weights)
    spec, state, changes = _follow_file(spec, loaded, fields)
    with on_meta():
        model = build(spec)
    target = model.state_dict()
    table = spec.table_layout if "pos_embed" in target else None
    size = loaded.spec_fields.get("image_size")
    if (
        table
        and size
        and weights_grid is None
        and all(side % step == 0 for side, step in zip(size, spec.stem.cell, strict=True))
    ):
        weights_grid = cut(size, spec.stem.cell)
    state, more = adapt(
        state,
        target,
        first_weight=model.first_weight,
        table=table,
        cell=spec.stem.cell if table else (),
        resize_rule=spec.resize_rule if table else "bicubic",
        channel_rule=channel_rule,
        weights_grid=weights_grid,
    )
    check_fit(state, target, label or "this specification")
    model.load_state_dict(state, assign=True)
    model.requires_grad_(True)
    preprocess = preprocess_for(label, spec, loaded.preprocess)
    if label and spec.takes == IMAGE and preprocess != preprocess_for(label, spec, None):
        more.append("preprocessing from the file or its format, not the default for this name")
    model.about = About(name=label, preprocess=preprocess, changes=(*changes, *more))
    for change in model.changes:
        logger.info("%s: %s", label or "model", change)
    return model


def preprocess_for(name: str, spec: ImageSpec, stored: Preprocess | None) -> InputPreprocess | None:
    """Return a model's preprocessing at its own size: `stored` with its weights, else the default for its name.

    None for images of other than one or three channels, and for several inputs.
    """
    if spec.takes in (("sound",), ("video",)):
        return plug.load(PREPARATIONS, spec.takes[0]).Spec.of_size(spec.image_size)
    if spec.channels not in (1, 3) or len(spec.image_size) != 2 or spec.takes != IMAGE:
        return None
    default = (preprocess_named(name) if name else Preprocess()).override({"size": spec.image_size})
    chosen = default if stored is None else stored.override({"size": spec.image_size})
    # transformers stores the size before the crop, 248, which fits both 0.9 and 0.9032.
    same_size = chosen.resize_size(1000, 1000) == default.resize_size(1000, 1000)
    if same_size and chosen.override({"crop": default.crop}) == default:
        chosen = default
    if spec.channels == chosen.channels:
        return chosen
    num = spec.channels
    means = [[sum(values) / len(values)] * num for values in (chosen.mean, chosen.std)]
    return chosen.override({"mode": "grey" if num == 1 else "rgb", "mean": means[0], "std": means[1]})


def _follow_file(
    spec: ImageSpec, loaded: Weights, fields: dict[str, Any]
) -> tuple[ImageSpec, dict[str, torch.Tensor], list[str]]:
    """Set the specification's fields as the file has them, except those that the caller set."""
    state, changes, follow = dict(loaded.state), [], {}
    head = state.get("head.weight", state.get("head.fc.weight"))
    num_classes = head.shape[0] if head is not None and head.ndim > 1 else None
    if num_classes is not None and num_classes != spec.num_classes:
        if "num_classes" in fields:
            state = {key: tensor for key, tensor in state.items() if not key.startswith(HEADS)}
            changes.append(f"classifier for {num_classes} classes dropped")
        else:
            follow["num_classes"] = num_classes
            changes.append(f"{num_classes} classes, as in the file")
    pre_logits = state.get("pre_logits.fc.weight")
    if pre_logits is not None and getattr(spec, "pre_logits", 0) is None:
        if num_classes is not None and not any(key.startswith(HEADS) for key in state):
            state = {key: tensor for key, tensor in state.items() if not key.startswith("pre_logits.")}
            changes.append("pre_logits layer dropped, as in the paper's fine-tuning")
        else:
            follow["pre_logits"] = pre_logits.shape[0] if pre_logits.ndim else 1
            changes.append("pre_logits layer added, as in the file")
    for field, value in loaded.spec_fields.items():
        # The image size is the caller's or the name's; positions are resized to it.
        known = field in type(spec).model_fields and field != "image_size" and field not in fields
        if known and getattr(spec, field) != value:
            follow[field] = value
            changes.append(f"{field}={value}, as in the file or the config.json beside it")
    return spec.override(follow) if follow else spec, state, changes
