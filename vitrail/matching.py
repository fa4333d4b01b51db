"""Find the models of the catalogue that weights can belong to, by the shapes of their tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from vitrail import catalogue
from vitrail.adapt import check_fit
from vitrail.contract import Classifier, ImageSpec
from vitrail.errors import ShapeError, SpecError, WeightsError
from vitrail.names import canonical
from vitrail.spec import Spec
from vitrail.weights.rules import State
from vitrail.weights.source import Weights

Shapes = dict[str, torch.Size]


def list_candidates(source: str) -> list[str]:
    """List the catalogue in order of preference: names in the path first, then ViT before DeiT (same shapes)."""
    return sorted(catalogue.list_models(), key=lambda name: (name not in source, name.startswith("deit")))


def find_matches(loaded: Weights, names: list[str]) -> list[tuple[str, ImageSpec]]:
    """Return those of the models that have the tensors' shapes, with their specifications: at least one.

    Models that match at their own image size take precedence over those that match at another size.
    """
    shapes = {key: tensor.shape for key, tensor in loaded.state.items()}
    found: list[tuple[str, ImageSpec]] = []
    resized: list[tuple[str, ImageSpec]] = []
    for name in names:
        spec = named = catalogue.spec_named(name)
        fields = {field: value for field, value in _infer_fields(loaded).items() if field in type(spec).model_fields}
        try:
            spec = spec.override(fields)
        except (SpecError, ShapeError):  # the heads do not divide another width, or the patch another size
            if len(names) == 1:
                raise
            continue
        spec, expected = _with_channels(spec, loaded.state)
        if expected == shapes:
            (found if spec.image_size == named.image_size else resized).append((canonical(name), spec))
        elif len(names) == 1:
            check_fit(loaded.state, _on_meta(spec).state_dict(), name)
    if not found and not resized:
        raise WeightsError(
            "no model of the catalogue has tensors of these shapes.",
            got=f"{len(shapes)} tensors.",
            hint="--model NAME; unlisted names such as vit_tiny_patch8_64 work too.",
        )
    return found or resized[:1]


def possible_names(source: str, loaded: Weights) -> list[str]:
    """Return the one model that fits, or all of them if they share the shapes but differ in preprocessing."""
    found = find_matches(loaded, list_candidates(source))
    preprocessings = {catalogue.preprocess_for(name, spec, loaded.preprocess) for name, spec in found}
    named = found[0][0] in source  # people and hubs put the model's name into the path
    return [name for name, _ in found[: 1 if named or len(preprocessings) == 1 else None]]


def only_name(source: str, loaded: Weights, *, hint: str) -> str:
    """Return the model that weights belong to; if that is ambiguous, raise an error with one of them in its `hint`."""
    names = possible_names(source, loaded)
    if len(names) > 1:
        raise WeightsError(
            f"{source} fits more than one model, and they differ in preprocessing.",
            got=f"the shapes of {', '.join(names)}.",
            hint=hint.replace("{name}", names[-1]),
        )
    return names[0]


def _with_channels(spec: ImageSpec, state: State) -> tuple[ImageSpec, Shapes]:
    """Set the specification's input channels as in the file; also return the shapes that it then expects."""
    name, expected = _expected_shapes(spec)
    first = state.get(name)
    if first is not None and first.ndim > 1 and first.shape[1]:
        channels = spec.channels + first.shape[1] - expected[name][1]  # the weight may have columns for positions too
        if 0 < channels != spec.channels:
            spec = spec.override({"channels": channels})
            expected = _expected_shapes(spec)[1]
    return spec, expected


@lru_cache(maxsize=1024)  # the whole catalogue takes more than a second, and the next file needs it again
def _expected_shapes(spec: Spec) -> tuple[str, Shapes]:
    """Return the name of a model's first weight, and the shapes of all its tensors."""
    model = _on_meta(spec)
    return model.first_weight, {key: tensor.shape for key, tensor in model.state_dict().items()}


def _on_meta(spec: Spec) -> Classifier:
    with catalogue.on_meta():
        return catalogue.build(spec)


def _infer_fields(loaded: Weights) -> dict[str, Any]:
    """Read fields of the specification off the tensors and the file's metadata."""
    state = loaded.state
    fields = {**loaded.spec_fields, "num_classes": 0}
    head, hidden = state.get("head.weight", state.get("head.fc.weight")), state.get("pre_logits.fc.weight")
    for field, tensor in (("num_classes", head), ("pre_logits", hidden)):
        if tensor is not None and tensor.ndim and tensor.shape[0]:
            fields[field] = tensor.shape[0]
    return fields
