"""The finished files of a run: weights and metadata that Vitrail, timm and transformers can load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail import catalogue, plug
from vitrail.about import About
from vitrail.contract import Classifier, Model
from vitrail.data.exchange import to_hf
from vitrail.data.preparation import InputPreprocess
from vitrail.errors import RunError, SpecError, VitrailError, WeightsError, brief
from vitrail.files import write_text
from vitrail.run.calibrate import check_thresholds, read_calibration, write_calibration
from vitrail.run.directory import CONFIG, invalid, read_document, read_result, stored_config, write_json, write_result
from vitrail.run.fit import check_numbers, check_spec
from vitrail.run.golden import write_golden
from vitrail.run.schema import LABELS_FILE
from vitrail.sums import check_sum
from vitrail.weights import tensor_files
from vitrail.weights.source import get_format

WEIGHTS, LABELS = "model.safetensors", "labels.json"
IMAGE_KINDS = ("classification", "regression")
ALIGNMENT, CLIPS, PRETRAINING = "alignment", "clips", "pretraining"
NUMBER = "number"  # what a regression run predicts, if nobody named it
Card = Callable[[Mapping[str, Any], Mapping[str, Any], list[str]], str]
"""Makes a model card from the facts and the result of a run, and the libraries that can load the model."""


def write_artefact(
    path: Path, model: Classifier, *, golden: UInt8[Tensor, "n Y X C"] | None, card: Callable[[list[str]], str]
) -> None:
    """Write everything that others need to use the model; `mark_finished` comes after it.

    `golden` are images to replay before the model is served or exported; None for clips. `card` makes the model card
    from the list of libraries that can load the model.
    """
    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    tensor_files.write_tensors(state, path / WEIGHTS)
    loadable_by = ["vitrail"] if golden is None else _write_configs(path, model)
    write_json(path / LABELS, list(model.labels))
    write_calibration(path, model.calibration)
    if golden is not None:
        with torch.inference_mode():
            logits = model.eval()(model.preprocess.normalise(golden.numpy())).float()
        write_golden(path, model.preprocess, golden, logits)
    write_text(card(loadable_by), path / "README.md", RunError)


def mark_finished(path: Path, result: dict[str, Any]) -> None:
    """Mark the run as finished by writing the sums of its files, and its result."""
    write_result(path, result)


def _write_configs(path: Path, model: Classifier) -> list[str]:
    """Write timm's config.json and transformers' preprocessor_config.json; return the libraries that can load them."""
    fields = model.spec.model_dump(mode="json")
    timm = get_format("timm")
    loadable_by = ["vitrail"]
    state, timm_name = model.state_dict(), catalogue.timm_name(model.name, model.spec)
    try:
        converted = timm.write(state, fields)
        config = timm.config_files(fields, timm_name or model.name, model.preprocess)["config.json"]
        # The run stores the tensors as they are, not as they would have to be converted.
        same = all(name in converted and converted[name].shape == tensor.shape for name, tensor in state.items())
        loadable_by += ["timm", "transformers"] if timm_name and same else []
    except WeightsError:  # an architecture that timm does not have
        config = {"architecture": model.name, "num_classes": fields["num_classes"]}
    write_json(path / "config.json", {**config, "label_names": list(model.labels)})
    try:
        write_json(path / "preprocessor_config.json", to_hf(model.preprocess))
    except SpecError:  # greyscale images and sizes that transformers cannot preprocess
        (path / "preprocessor_config.json").unlink(missing_ok=True)
    return loadable_by


def is_run(path: str | Path) -> bool:
    """Whether a path is a run directory."""
    return (Path(path) / CONFIG).is_file()


def find_target(path: str | Path) -> str | None:
    """What a regression run predicts; None for any other model."""
    config = stored_config(Path(path)) if is_run(path) else None
    return str(config["request"].get("target", NUMBER)) if config and config.get("kind") == "regression" else None


def open_run(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the config and the result of a finished run."""
    config = stored_config(path) if is_run(path) else None
    if config is None:
        raise RunError(
            f"{path} is not a run.", got="a folder without config.yaml.", hint="the --run directory of vitrail train."
        )
    result = read_result(path)
    if result is None or not (path / WEIGHTS).is_file():
        raise RunError(
            f"the run in {path} has not finished.", got="no model yet.", hint="the same command again to resume it."
        )
    return config, result


def kind_of(path: str | Path) -> str | None:
    """The kind of a run; None for anything that is not a run."""
    config = stored_config(Path(path)) if is_run(path) else None
    return None if config is None else str(config.get("kind", IMAGE_KINDS[0]))


def read_spec(path: Path, config: Mapping[str, Any]) -> Any:
    """The specification of a run's model; one that does not fit the run's weights is refused."""
    try:
        check_sum(path / WEIGHTS, RunError)
        shapes = tensor_files.read_shapes(path / WEIGHTS)
    except OSError as error:
        raise invalid(path / WEIGHTS, error) from None
    try:
        stored = config["model"]
        check_numbers(stored["spec"], shapes, path / CONFIG, "model.spec")
        spec = plug.load(catalogue.MODELS, stored["family"]).Spec.parse(stored["spec"])
        check_spec(spec, shapes, path / CONFIG)
    except RunError:
        raise
    except (KeyError, TypeError, OverflowError) as error:
        raise invalid(path / CONFIG, ValueError(f"model: {error!r}")) from None
    except VitrailError as error:
        raise invalid(path / CONFIG, ValueError(f"model.spec: {error.wrong} {error.got}")) from None
    return spec


def load_network(path: Path, config: Mapping[str, Any]) -> Model:
    """Build the model of a run and load its weights; it knows nothing of its data yet."""
    model = catalogue.build(read_spec(path, config))
    try:
        model.load_state_dict(tensor_files.read_tensors(path / WEIGHTS))
    except RuntimeError as error:
        raise RunError(
            f"{path / WEIGHTS} does not fit the run's model.", got=brief(error), hint="another run."
        ) from None
    return model.eval()


def load(path: str | Path) -> Classifier:
    """Load the model of a run on images or clips in evaluation mode, with preprocessing, labels and calibration."""
    path = Path(path)
    config, result = open_run(path)
    kind = str(config.get("kind", IMAGE_KINDS[0]))
    if kind not in (*IMAGE_KINDS, CLIPS, PRETRAINING):
        is_aligned = kind == ALIGNMENT
        raise RunError(
            f"{path} is a run on {'several modalities' if is_aligned else 'text'}, not on images.",
            got=f"a run of the kind {kind}.",
            hint=f"vitrail {'search' if is_aligned else 'generate, explain'}, predict or evaluate.",
        )
    model = load_network(path, config)
    assert isinstance(model, Classifier)
    preprocess, size = stored_preprocess(config, path), model.spec.image_size
    if tuple(preprocess.size) != tuple(size):
        got = ValueError(f"prepare.size: {preprocess.size}, of a model of images of {size}")
        raise invalid(path / CONFIG, got)
    try:
        labels = read_document(path / LABELS, LABELS_FILE)
        if len(labels) != model.spec.num_classes:
            raise ValueError(f"{len(labels):,} labels of {model.spec.num_classes:,} classes")
    except (OSError, ValueError) as error:
        raise invalid(path / LABELS, error) from None
    calibration = read_calibration(path, multi_label="map" in (result.get("val") or ()))
    model.about = About(
        kind=kind,
        name=str(config["model"].get("name", "")),
        preprocess=preprocess,
        labels=tuple(labels),
        calibration=check_thresholds(calibration, model.spec.num_classes, path),
    )
    return model


def stored_preprocess(config: Mapping[str, Any], path: Path) -> InputPreprocess:
    """The preprocessing in config.yaml; runs before 0.3 have it under `preprocess`."""
    name = "prepare" if "prepare" in config else "preprocess"
    try:
        fields = dict(config[name])
        return plug.load(catalogue.PREPARATIONS, fields.pop("name", "image")).Spec.parse(fields)
    except (KeyError, TypeError, OverflowError) as error:
        raise invalid(path / CONFIG, ValueError(f"{name}: {error!r}")) from None
    except VitrailError as error:
        raise invalid(path / CONFIG, ValueError(f"{name}.{error.wrong} {error.got}")) from None
