"""Weights from one project's format to another's, with nothing lost on the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from vitrail import catalogue, matching
from vitrail.data.transform import Preprocess
from vitrail.errors import WeightsError
from vitrail.files import write_text
from vitrail.weights import safe
from vitrail.weights.rules import State
from vitrail.weights.source import find_file, format_named, load_weights


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
    matches = matching.matches(loaded, [model] if model else matching.candidates(str(source)))
    name, spec = matches[0]
    path, given = _target(Path(out), form).resolve(), find_file(source).resolve()
    if given in (path, path.parent):
        raise WeightsError("the result would lie over its source.", got=f"--out {out}.", hint="another --out.")
    preprocess = catalogue.preprocess_for(name, spec, loaded.preprocess)
    named = catalogue.timm_name(name, spec) if to == "timm" else name
    files = _write(loaded.state, spec.model_dump(mode="json"), named, to, Path(out), preprocess)
    return Conversion(name, loaded.format, to, len(loaded.state), files, tuple(other for other, _ in matches[1:]))


def save_weights(model: Any, out: str | Path, *, to: str = "timm") -> tuple[Path, ...]:
    """Write a model's weights in any format: to a file, or with its config.json to a folder."""
    facts = model.spec.model_dump(mode="json")
    named = catalogue.timm_name(model.name, model.spec) if to == "timm" and model.name else model.name
    return _write(model.state_dict(), facts, named, to, Path(out), model.preprocess)


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
