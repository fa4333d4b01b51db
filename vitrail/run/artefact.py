"""What a run leaves behind: weights and the files beside them, as Vitrail, timm and transformers open them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import UInt8
from torch import Tensor

from vitrail import catalogue, plug
from vitrail.data.exchange import to_hf
from vitrail.data.transform import Preprocess
from vitrail.errors import RunError, SpecError, WeightsError
from vitrail.files import write_text
from vitrail.run.calibrate import Calibration, check_thresholds, read_calibration, write_calibration
from vitrail.run.card import model_card
from vitrail.run.directory import CONFIG, RESULT, read_result, stored_config, write_json
from vitrail.run.golden import write_golden
from vitrail.weights import safe
from vitrail.weights.source import format_named

WEIGHTS, LABELS = "model.safetensors", "labels.json"


def write_artefact(
    path: Path,
    model: Any,
    *,
    classes: Sequence[str],
    golden: UInt8[Tensor, "n Y X C"],
    calibration: Calibration,
    card: dict[str, Any],
) -> None:
    """Everything that somebody else needs to use the model; only `end` then says that the run has ended."""
    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    safe.write_tensors(state, path / WEIGHTS)
    opened_by = _write_configs(path, model, classes)
    write_json(path / LABELS, list(classes))
    write_calibration(path, calibration)
    with torch.inference_mode():
        logits = model.eval()(model.preprocess.normalise(golden.numpy())).float()
    write_golden(path, model.preprocess, golden, logits)
    write_text(model_card(**card, opened_by=opened_by, calibration=calibration), path / "README.md", RunError)


def mark_finished(path: Path, result: dict[str, Any]) -> None:
    """Say that the run has ended, and with what; the last file that is written."""
    write_json(path / RESULT, result)


def _write_configs(path: Path, model: Any, classes: Sequence[str]) -> list[str]:
    """timm's config.json and transformers' preprocessor_config.json, and who can open the folder with them."""
    facts = model.spec.model_dump(mode="json")
    timm = format_named("timm")
    opened_by = ["vitrail"]
    try:
        timm.write(model.state_dict(), facts)
        config = timm.beside(facts, catalogue.timm_name(model.name, model.spec), model.preprocess)["config.json"]
        opened_by += ["timm", "transformers"] if facts.get("stem", {"name": "patch"})["name"] != "conv" else []
    except WeightsError:  # a form of model that timm does not have
        config = {"architecture": model.name, "num_classes": facts["num_classes"]}
    write_json(path / "config.json", {**config, "label_names": list(classes)})
    try:
        write_json(path / "preprocessor_config.json", to_hf(model.preprocess))
    except SpecError:  # grey pictures and sizes that transformers cannot prepare
        (path / "preprocessor_config.json").unlink(missing_ok=True)
    return opened_by


def is_run(path: str | Path) -> bool:
    """Whether a path is the directory of a run."""
    return (Path(path) / CONFIG).is_file()


def load(path: str | Path) -> Any:
    """The model of a run, in evaluation mode, with its `preprocess`, its `labels` and its `calibration`."""
    path = Path(path)
    config = stored_config(path) if is_run(path) else None
    if config is None:
        raise RunError(f"{path} is no run.", got="a folder without config.yaml.", hint="the --run of vitrail train.")
    result = read_result(path)
    if result is None or not (path / WEIGHTS).is_file():
        raise RunError(
            f"the run in {path} has not ended.",
            got="no model yet.",
            hint="the same command again, which goes on with it.",
        )
    try:
        chosen = config["model"]
        spec = plug.load(catalogue.MODELS, chosen["family"]).Spec.parse(chosen["spec"])
        preprocess = Preprocess.parse(config["preprocess"])
        labels = json.loads((path / LABELS).read_text(encoding="utf-8"))
        if not isinstance(labels, list) or len(labels) != spec.num_classes:
            raise ValueError(f"{LABELS} does not name {spec.num_classes} classes")
    except (KeyError, TypeError, OSError, ValueError, yaml.YAMLError) as error:
        raise RunError(f"the files of the run in {path} do not belong together.", got=f"{error!r}.") from None
    model = catalogue.create_model(spec, weights=path / WEIGHTS)
    model.name, model.preprocess, model.labels, model.changes = chosen["name"], preprocess, tuple(labels), ()
    calibration = read_calibration(path, multi_label="map" in (result.get("val") or ()))
    model.calibration = check_thresholds(calibration, spec.num_classes, path)
    return model.eval()
