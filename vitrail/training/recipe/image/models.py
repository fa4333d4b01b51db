"""Creates the model that a recipe for images asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vitrail import catalogue, matching, plug
from vitrail.contract import Classifier
from vitrail.data.table import Source
from vitrail.weights.source import load_weights


def make_image_models(
    source: Source, model: str | None, weights: str | Path | None, overrides: Sequence[str], seed: int
) -> Callable[..., Classifier]:
    """Return a function that creates the model; without a name, it is inferred from the weights or the data."""
    if model is None and weights is not None:
        model = matching.only_name(str(weights), load_weights(weights), hint="--model {name}, if that is the one.")
    elif model is None:
        model = plug.load("vitrail.training.recipe", "scratch").suggest(source)
    default_name = str(model)
    spec = catalogue.spec_named(default_name).override_words(overrides)
    fields = {key: getattr(spec, key) for key in (word.partition("=")[0].partition(".")[0] for word in overrides)}

    def new_model(*, name: str = default_name, **more: Any) -> Classifier:
        torch.manual_seed(seed)
        return catalogue.create_model(name, weights=weights, **{**fields, **more})

    new_model(num_classes=max(1, source.num_outputs))  # so that errors in the model are raised before anything starts
    return new_model
