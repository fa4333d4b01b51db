"""Which models of the catalogue can weights be those of? Told by the shapes of their tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from vitrail import catalogue
from vitrail.adapt import check_fit
from vitrail.errors import ShapeError, SpecError, WeightsError
from vitrail.names import canonical
from vitrail.weights.rules import State
from vitrail.weights.source import Weights

Shapes = dict[str, torch.Size]


def candidates(source: str) -> list[str]:
    """The catalogue; a DeiT has the shapes of a ViT, so names in the path come first, and then ViT before DeiT."""
    return sorted(catalogue.list_models(), key=lambda name: (name not in source, name.startswith("deit")))


def matches(loaded: Weights, names: list[str]) -> list[tuple[str, Any]]:
    """Those of the models whose shapes the tensors have, with their specifications; there is one at least.

    A model whose own size of pictures fits is meant rather than one that would have to change its size.
    """
    shapes = {key: tensor.shape for key, tensor in loaded.state.items()}
    found: list[tuple[str, Any]] = []
    resized: list[tuple[str, Any]] = []
    for name in names:
        spec = named = catalogue.spec_named(name)
        told = {field: value for field, value in _told(loaded).items() if field in type(spec).model_fields}
        try:
            spec = spec.override(told)
        except (SpecError, ShapeError):  # another width that the heads do not divide, or another patch
            if len(names) == 1:
                raise
            continue
        spec, wanted = _with_channels(spec, loaded.state)
        if wanted == shapes:
            (found if spec.image_size == named.image_size else resized).append((canonical(name), spec))
        elif len(names) == 1:
            check_fit(loaded.state, _on_meta(spec).state_dict(), name)
    if not found and not resized:
        raise WeightsError(
            "no model of the catalogue has tensors of these shapes.",
            got=f"{len(shapes)} tensors.",
            hint="--model NAME; a name such as vit_tiny_patch8_64 need not be in the catalogue.",
        )
    return found or resized[:1]


def names_of(source: str, loaded: Weights) -> list[str]:
    """The models that weights may be of: one, unless several have their shapes and prepare pictures differently."""
    found = matches(loaded, candidates(source))
    ways = {catalogue.preprocess_for(name, spec, loaded.preprocess) for name, spec in found}
    named = found[0][0] in source  # as people and hubs name files and folders
    return [name for name, _ in found[: 1 if named or len(ways) == 1 else None]]


def only_name(source: str, loaded: Weights, *, hint: str) -> str:
    """The model that weights are of; if they may be of several, the user is asked, with one in the `hint`."""
    names = names_of(source, loaded)
    if len(names) > 1:
        raise WeightsError(
            f"{source} may be of more than one model, which prepare pictures differently.",
            got=f"the shapes of {', '.join(names)}.",
            hint=hint.replace("{name}", names[-1]),
        )
    return names[0]


def _with_channels(spec: Any, state: State) -> tuple[Any, Shapes]:
    """The specification with the file's number of input channels, and the shapes that it asks for."""
    name, wanted = _asked_for(spec)
    first = state.get(name)
    if first is not None and first.ndim > 1 and first.shape[1] not in (0, spec.channels):
        spec = spec.override({"channels": first.shape[1]})
        wanted = _asked_for(spec)[1]
    return spec, wanted


@lru_cache(maxsize=1024)  # for the whole catalogue it takes more than a second, and the next file asks again
def _asked_for(spec: Any) -> tuple[str, Shapes]:
    """The name of a model's first weight, and the shapes of all."""
    model = _on_meta(spec)
    return model.first_weight, {key: tensor.shape for key, tensor in model.state_dict().items()}


def _on_meta(spec: Any) -> Any:
    with catalogue.on_meta():
        return catalogue.build(spec)


def _told(loaded: Weights) -> dict[str, Any]:
    """The fields of a specification that the tensors themselves tell."""
    state = loaded.state
    fields = {**loaded.facts, "num_classes": 0}
    head, hidden = state.get("head.weight", state.get("head.fc.weight")), state.get("pre_logits.fc.weight")
    for field, tensor in (("num_classes", head), ("pre_logits", hidden)):
        if tensor is not None and tensor.ndim and tensor.shape[0]:
            fields[field] = tensor.shape[0]
    return fields
