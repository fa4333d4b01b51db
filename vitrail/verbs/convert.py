"""Convert weights between the formats of different projects, without loss."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from vitrail import catalogue, matching
from vitrail.contract import Classifier
from vitrail.data.text.tokenizer import END, FILE, HF_CONFIG, START, hf_config
from vitrail.data.transform import Preprocess
from vitrail.errors import RunError, WeightsError
from vitrail.files import write_text
from vitrail.run.artefact import ALIGNMENT, CLIPS, WEIGHTS, kind_of
from vitrail.run.text_model import TEXT_KINDS, load_text_model
from vitrail.weights import tensor_files
from vitrail.weights.causal_lm import write_causal_lm
from vitrail.weights.rules import State
from vitrail.weights.source import find_file, get_format, load_weights


class Conversion(NamedTuple):
    """The model, both formats, the files written, and in `also` the other models whose tensors have the same shapes."""

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

    `out` is a file, or a folder for the weights and the config.json that the other project needs to open it. `model`
    is needed only if the tensors' shapes do not identify the model, and `image_size` only if it was trained on another
    size than its name says.
    """
    if kind_of(source) in TEXT_KINDS:
        return _convert_language_model(Path(source), to, Path(out))
    if kind_of(source) in (ALIGNMENT, CLIPS):
        raise RunError(
            "other projects have no such model.",
            got=f"a run of the kind {kind_of(source)}.",
            hint="a run on images or text.",
        )
    target_format = get_format(to)
    loaded = load_weights(source)
    if image_size:
        loaded = loaded._replace(spec_fields={**loaded.spec_fields, "image_size": image_size})
    matches = matching.find_matches(loaded, [model] if model else matching.list_candidates(str(source)))
    name, spec = matches[0]
    path, source_path = _target_file(Path(out), target_format).resolve(), find_file(source).resolve()
    if source_path in (path, path.parent):
        raise WeightsError("the result would overwrite its source.", got=f"--out {out}.", hint="another --out.")
    preprocess = cast("Preprocess | None", catalogue.preprocess_for(name, spec, loaded.preprocess))
    target_name = (catalogue.timm_name(name, spec) if to == "timm" else "") or name
    files = _write(loaded.state, spec.model_dump(mode="json"), target_name, to, Path(out), preprocess)
    return Conversion(name, loaded.format, to, len(loaded.state), files, tuple(other for other, _ in matches[1:]))


def _convert_language_model(run: Path, to: str, out: Path) -> Conversion:
    """Write a language model and its tokenizer as a folder that transformers opens."""
    opened = load_text_model(run, kinds=("language",))
    if to != "hf":
        raise WeightsError("a language model converts to transformers only.", got=f"--to {to}.", hint="--to hf.")
    if out.resolve() == run.resolve() or (out.exists() and not out.is_dir()):
        raise WeightsError("the result needs a folder of its own.", got=f"--out {out}.", hint="another --out.")
    spec = opened.model.spec.model_dump(mode="json")
    tensors, config = write_causal_lm(opened.model.state_dict(), spec)
    config |= {"bos_token_id": opened.tokenizer.special(START), "eos_token_id": opened.tokenizer.special(END)}
    created = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": json.dumps(config, indent=2) + "\n",
        FILE: opened.tokenizer.to_json(),
        HF_CONFIG: json.dumps(hf_config(opened.tokenizer, opened.context), indent=2) + "\n",
    }
    try:
        tensor_files.write_tensors(tensors, out / WEIGHTS)
        for name, text in files.items():
            write_text(text, out / name, WeightsError)
    except BaseException:
        if created:
            shutil.rmtree(out, ignore_errors=True)
        raise
    name = str(config["architectures"][0])
    return Conversion(name, "vitrail", to, len(tensors), (out / WEIGHTS, *(out / each for each in files)), ())


def save_weights(model: Classifier, out: str | Path, *, to: str = "timm") -> tuple[Path, ...]:
    """Write a model's weights in any format: to a file, or to a folder together with a config.json."""
    fields = model.spec.model_dump(mode="json")
    timm_name = catalogue.timm_name(model.name, model.spec) if to == "timm" and model.name else ""
    return _write(model.state_dict(), fields, timm_name or model.name, to, Path(out), model.preprocess)


def _write(
    state: State, fields: dict[str, Any], name: str, to: str, out: Path, preprocess: Preprocess | None
) -> tuple[Path, ...]:
    target_format = get_format(to)
    foreign = target_format.write(state, fields)
    path = _target_file(out, target_format)
    if path.suffix.lower() not in target_format.SUFFIXES:
        raise WeightsError(
            f"the {to} format does not use such files.",
            got=f"{path.name!r}.",
            hint=f"{' or '.join(target_format.SUFFIXES)}.",
        )
    if path == out:
        tensor_files.write_tensors(foreign, path)
        return (path,)
    configs = target_format.config_files(fields, name, preprocess) if hasattr(target_format, "config_files") else {}
    created = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        tensor_files.write_tensors(foreign, path)
        for file, config in configs.items():
            write_text(json.dumps(config, indent=2) + "\n", out / file, WeightsError)
    except BaseException:
        if created:  # leave nothing half-written, not even a folder
            shutil.rmtree(out, ignore_errors=True)
        raise
    return (path, *(out / file for file in configs))


def _target_file(out: Path, target_format: ModuleType) -> Path:
    """The weight file that `out` stands for: itself, or the one in the folder."""
    is_file = out.suffix.lower() in tensor_files.KIND_OF_SUFFIX and not out.is_dir()
    return out if is_file else out / f"model{target_format.SUFFIXES[0]}"
