"""MODEL on the command line: the directory of a run, a weight file, or a name of the catalogue with weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vitrail import catalogue, matching
from vitrail.errors import UnknownNameError, WeightsError
from vitrail.run.artefact import is_run, load
from vitrail.weights.source import load_weights


def open_model(model: str | Path, weights: str | Path | None = None) -> Any:
    """A model in evaluation mode, with its `preprocess` and, if it is a run's, its `labels`."""
    if weights is None and is_run(model):
        return load(model)
    if weights is None and Path(model).is_file():
        name = matching.only_name(
            str(model), load_weights(model), hint=f"{{name}} with --weights {model}, if it is that one."
        )
        return catalogue.create_model(name, weights=model).eval()
    if weights is None:
        if not Path(model).is_dir():
            try:
                catalogue.spec_named(str(model))  # an unknown name is told as such
            except UnknownNameError:
                if os.sep not in str(model):
                    raise
                raise WeightsError(f"there is nothing at {model}.", got="a path that leads nowhere.") from None
        raise WeightsError(
            f"{model} has no weights by itself.", got="no --weights.", hint="--weights FILE, or the directory of a run."
        )
    return catalogue.create_model(str(model), weights=weights).eval()
