"""Weights from one project's format to another's, with nothing lost on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from vitrail import catalogue
from vitrail.adapt import check_fit
from vitrail.errors import WeightsError
from vitrail.weights import safe
from vitrail.weights.rules import State
from vitrail.weights.source import Weights, find_file, format_named, load_weights


class Conversion(NamedTuple):
    """What was converted, from what to what, and the files written."""

    model: str
    from_format: str
    to_format: str
    num_tensors: int
    files: tuple[Path, ...]


def convert(source: str | Path, *, to: str, out: str | Path, model: str | None = None) -> Conversion:
    """Write the weights of `source` in another format.

    `out` is a file, or a folder, which then gets the weights and the config.json with which the other project opens
    it. `model` is needed only where the tensors' shapes do not tell which model of the catalogue they are.
    """
    loaded = load_weights(source)
    name, spec = _match(loaded, model)
    facts = {**spec.model_dump(mode="json"), **loaded.facts}
    if Path(out).exists() and find_file(source).resolve() in (Path(out).resolve(), *Path(out).resolve().glob("*")):
        raise WeightsError("the result would lie over its source.", got=f"{out}.", hint="another --out.")
    files = _write(loaded.state, facts, name, to, Path(out))
    return Conversion(name, loaded.format, to, len(loaded.state), files)


def save_weights(model: Any, out: str | Path, *, to: str = "timm") -> tuple[Path, ...]:
    """Write a model's weights in any format: to a file, or with its config.json to a folder."""
    return _write(model.state_dict(), model.spec.model_dump(mode="json"), model.name, to, Path(out))


def _write(state: State, facts: dict[str, Any], name: str, to: str, out: Path) -> tuple[Path, ...]:
    form = format_named(to)
    foreign = form.write(state, facts)
    as_folder = out.is_dir() or not out.suffix
    path = out / f"model{form.SUFFIXES[0]}" if as_folder else out
    if path.suffix not in form.SUFFIXES:
        raise WeightsError(
            f"the {to} format is not kept in such files.", got=f"{path.name!r}.", hint=f"{' or '.join(form.SUFFIXES)}."
        )
    if as_folder:
        out.mkdir(parents=True, exist_ok=True)
    safe.write_tensors(foreign, path)
    config = form.config(facts, name) if as_folder else None
    if config is None:
        return (path,)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return (path, out / "config.json")


def _match(loaded: Weights, model: str | None) -> tuple[str, Any]:
    """The model that these tensors belong to: the one named, or the first of the catalogue whose shapes they have."""
    for name in [model] if model else catalogue.list_models():
        spec = _with_heads(catalogue.spec_named(name), loaded.state)
        if spec is None:
            continue
        with catalogue.hollow():
            wanted = catalogue.build(spec).state_dict()
        if {key: tensor.shape for key, tensor in wanted.items()} == {k: t.shape for k, t in loaded.state.items()}:
            return catalogue.canonical(name), spec
        if model:
            check_fit(loaded.state, wanted, model)
    width = next((tensor.shape[-1] for key, tensor in loaded.state.items() if key == "pos_embed"), "unknown")
    raise WeightsError(
        "no model of the catalogue has tensors of these shapes.",
        got=f"{len(loaded.state)} tensors, width {width}.",
        hint="--model NAME, where a name such as vit_tiny_patch8_64 need not be in the catalogue.",
    )


def _with_heads(spec: Any, state: State) -> Any:
    """The specification with the file's channels, classes and pre_logits, or None if it is another architecture."""
    head = state.get("head.weight", state.get("head.fc.weight"))
    fields: dict[str, Any] = {"num_classes": 0 if head is None else head.shape[0]}
    if "pre_logits.fc.weight" in state:
        if not hasattr(spec, "pre_logits"):
            return None
        fields["pre_logits"] = state["pre_logits.fc.weight"].shape[0]
    if hasattr(spec, "width") and "cls_token" in state and state["cls_token"].shape[-1] != spec.width:
        return None
    return spec.override(fields)
