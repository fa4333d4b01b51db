"""Open MODEL of the command line: a run, an exported model, a weight file, or a catalogue name with weights."""

from __future__ import annotations

import os
from pathlib import Path

from vitrail import catalogue, matching
from vitrail.engine.exported import ExportedModel, ImageModel, find_exported_file, open_exported
from vitrail.errors import RunError, UnknownNameError, WeightsError
from vitrail.run.artefact import PRETRAINING, WEIGHTS, is_run, kind_of, load
from vitrail.run.calibrate import check_thresholds
from vitrail.run.golden import ROUNDED_TOLERANCE, TOLERANCE, replay
from vitrail.weights.source import load_weights


def open_model(model: str | Path, weights: str | Path | None = None) -> ImageModel:
    """Open a model in evaluation mode, with its `preprocess` and, if it was trained here, its `labels`."""
    if weights is None and is_run(model):
        if kind_of(model) == PRETRAINING:
            raise RunError(
                f"{model} is pretrained, and has no classifier yet.",
                got="a run of the recipe pretrain.",
                hint=f"vitrail train DATA --weights {model}, or vitrail explain, which shows its reconstructions.",
            )
        return load(model)
    if weights is None and (file := find_exported_file(model)) is not None:
        exported = open_exported(file)
        check_thresholds(exported.calibration, len(exported.labels), file)
        return exported
    if weights is None and Path(model).is_file():
        name = matching.only_name(
            str(model), load_weights(model), hint=f"{{name}} with --weights {model}, if it is that one."
        )
        return catalogue.create_model(name, weights=model).eval()
    if weights is None:
        if not Path(model).is_dir():
            try:
                catalogue.spec_named(str(model))  # raises a better error for an unknown name
            except UnknownNameError:
                if os.sep not in str(model):
                    raise
                raise WeightsError(
                    f"there is nothing at {model}.",
                    hint="a run directory, a weight file or a name that vitrail models lists.",
                ) from None
        raise WeightsError(
            f"{model} is a model without weights.",
            hint="--weights with a file or a Hugging Face Hub name (see vitrail models NAME), or a run directory.",
        )
    return catalogue.create_model(str(model), weights=weights).eval()


def open_verified(model: str | Path, weights: str | Path | None = None) -> ImageModel:
    """Open a model as `open_model` does, and replay its golden samples if it has any."""
    opened = open_model(model, weights)
    exact, file = True, Path(model) / WEIGHTS
    if isinstance(opened, ExportedModel):
        exact, file = opened.facts["precision"] == "fp32" and not opened.facts.get("merge"), opened.file
    folder = file.parent
    if weights is None and folder.is_dir():
        replay(opened, folder, tolerance=TOLERANCE if exact else ROUNDED_TOLERANCE)
    return opened
