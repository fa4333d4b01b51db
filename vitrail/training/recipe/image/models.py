"""Creates the model that a recipe for images asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vitrail import catalogue, matching, plug
from vitrail.contract import Classifier, ImageSpec
from vitrail.data.table import IMAGE, Source
from vitrail.errors import SpecError, WeightsError
from vitrail.run.artefact import is_run, kind_of, open_run, read_spec
from vitrail.weights.source import load_weights


def make_image_models(
    source: Source, model: str | None, weights: str | Path | None, overrides: Sequence[str], seed: int
) -> Callable[..., Classifier]:
    """Return a function that creates the model; without a name, it is inferred from the weights or the data."""
    stored: dict[str, Any] = {}
    if model is None and weights is not None and is_run(weights):
        model, stored = model_of_run(Path(weights))
    elif model is None and weights is not None:
        model = matching.only_name(str(weights), load_weights(weights), hint="--model {name}, if that is the one.")
    elif model is None:
        model = plug.load("vitrail.training.recipe", "scratch").suggest(source)
    default_name = str(model)
    spec = catalogue.spec_named(default_name).override_words(overrides)
    takes = (stored["input_name"],) if "input_name" in stored else spec.takes
    if takes != IMAGE:
        raise SpecError(
            f"{default_name} is not a model of images.",
            got=f"a model that takes {' and '.join(takes)}.",
            hint=f"{plug.load('vitrail.training.recipe', 'scratch').suggest(source)}.",
        )
    fields = stored | {
        key: getattr(spec, key) for key in (word.partition("=")[0].partition(".")[0] for word in overrides)
    }

    def new_model(*, name: str = default_name, **more: Any) -> Classifier:
        torch.manual_seed(seed)
        return catalogue.create_model(name, weights=weights, **{**fields, **more})

    new_model(num_classes=max(1, source.num_outputs))  # so that errors in the model are raised before anything starts
    return new_model


def model_of_run(path: Path) -> tuple[str, dict[str, Any]]:
    """The name of a run's model, and the fields of its specification that the name does not imply."""
    config, _ = open_run(path)
    spec, name = read_spec(path, config), str(config["model"].get("name", ""))
    if not isinstance(spec, ImageSpec) or not name:
        raise WeightsError(
            f"{path} is not a run on images with a model of the catalogue.",
            got=f"a run of the kind {kind_of(path)}.",
            hint="another run, or --model.",
        )
    named = catalogue.spec_named(name)
    return name, {
        key: value
        for key, value in spec
        if key != "num_classes" and key in type(named).model_fields and value != getattr(named, key)
    }
