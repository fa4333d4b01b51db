"""Weights from one project's format to another's, with nothing lost on the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from vitrail import catalogue
from vitrail.adapt import check_fit
from vitrail.data.transform import Preprocess
from vitrail.errors import ShapeError, SpecError, WeightsError
from vitrail.files import write_text
from vitrail.names import canonical
from vitrail.weights import safe
from vitrail.weights.rules import State
from vitrail.weights.source import Weights, find_file, format_named, load_weights


class Conversion(NamedTuple):
    """What was converted, from what to what, the files written, and the models whose tensors look just the same."""

    model: str
    from_format: str
    to_format: str
    num_tensors: int
    files: tuple[Path, ...]
    also: tuple[str, ...]


def convert(
    source: str | Path,
    *,
    to: str,
    out: str | Path,
    model: str | None = None,
    image_size: tuple[int, int] | None = None,
) -> Conversion:
    """Write the weights of `source` in another format.

    `out` is a file, or a folder, which then gets the weights and the config.json with which the other project opens
    it. `model` is needed only where the tensors' shapes do not tell which model of the catalogue they are, and
    `image_size` only where that model was trained on another size than its name says.
    """
    form = format_named(to)
    loaded = load_weights(source)
    if image_size:
        loaded = loaded._replace(facts={**loaded.facts, "image_size": image_size})
    matches = _matches(loaded, [model] if model else _candidates(str(source)))
    name, spec = matches[0]
    path, given = _target(Path(out), form).resolve(), find_file(source).resolve()
    if given in (path, path.parent):
        raise WeightsError("the result would lie over its source.", got=f"--out {out}.", hint="another --out.")
    preprocess = catalogue.preprocess_for(name, spec, loaded.preprocess)
    files = _write(loaded.state, spec.model_dump(mode="json"), name, to, Path(out), preprocess)
    return Conversion(name, loaded.format, to, len(loaded.state), files, tuple(other for other, _ in matches[1:]))


def save_weights(model: Any, out: str | Path, *, to: str = "timm") -> tuple[Path, ...]:
    """Write a model's weights in any format: to a file, or with its config.json to a folder."""
    facts = model.spec.model_dump(mode="json")
    return _write(model.state_dict(), facts, model.name, to, Path(out), model.preprocess)


def _write(
    state: State, facts: dict[str, Any], name: str, to: str, out: Path, preprocess: Preprocess | None
) -> tuple[Path, ...]:
    form = format_named(to)
    foreign = form.write(state, facts)
    path = _target(out, form)
    if path.suffix.lower() not in form.SUFFIXES:
        raise WeightsError(
            f"the {to} format is not kept in such files.", got=f"{path.name!r}.", hint=f"{' or '.join(form.SUFFIXES)}."
        )
    if path == out:
        safe.write_tensors(foreign, path)
        return (path,)
    configs = form.beside(facts, name, preprocess) if hasattr(form, "beside") else {}
    made = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        safe.write_tensors(foreign, path)
        for file, config in configs.items():
            write_text(json.dumps(config, indent=2) + "\n", out / file, WeightsError)
    except BaseException:
        if made:  # nothing half written, not even a folder
            shutil.rmtree(out, ignore_errors=True)
        raise
    return (path, *(out / file for file in configs))


def _target(out: Path, form: ModuleType) -> Path:
    """The weight file that `out` means: itself, or the one in the folder."""
    is_file = out.suffix.lower() in safe.KIND_OF_SUFFIX and not out.is_dir()
    return out if is_file else out / f"model{form.SUFFIXES[0]}"


def _candidates(source: str) -> list[str]:
    """The catalogue; a DeiT has the shapes of a ViT, so names in the path come first, and then ViT before DeiT."""
    return sorted(catalogue.list_models(), key=lambda name: (name not in source, name.startswith("deit")))


def _matches(loaded: Weights, names: list[str]) -> list[tuple[str, Any]]:
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
        if {key: tensor.shape for key, tensor in wanted.items()} == shapes:
            (found if spec.image_size == named.image_size else resized).append((canonical(name), spec))
        elif len(names) == 1:
            check_fit(loaded.state, wanted, name)
    if not found and not resized:
        raise WeightsError(
            "no model of the catalogue has tensors of these shapes.",
            got=f"{len(shapes)} tensors.",
            hint="--model NAME; a name such as vit_tiny_patch8_64 need not be in the catalogue.",
        )
    return found or resized[:1]


def _with_channels(spec: Any, state: State) -> tuple[Any, State]:
    """The specification with the file's number of input channels, and the tensors that it asks for."""
    with catalogue.hollow():
        model = catalogue.build(spec)
        first = state.get(model.first_weight)
        if first is not None and first.ndim > 1 and first.shape[1] not in (0, spec.channels):
            spec = spec.override({"channels": first.shape[1]})
            model = catalogue.build(spec)
    return spec, model.state_dict()


def _told(loaded: Weights) -> dict[str, Any]:
    """The fields of a specification that the tensors themselves tell."""
    state = loaded.state
    fields = {**loaded.facts, "num_classes": 0}
    head, hidden = state.get("head.weight", state.get("head.fc.weight")), state.get("pre_logits.fc.weight")
    for field, tensor in (("num_classes", head), ("pre_logits", hidden)):
        if tensor is not None and tensor.ndim and tensor.shape[0]:
            fields[field] = tensor.shape[0]
    return fields
