"""Creates the model that a recipe for text asks for, and chooses its size by the time that there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail import machine, plug
from vitrail.catalogue import MODELS
from vitrail.contract import Model
from vitrail.data.table import Source
from vitrail.errors import SpecError, WeightsError
from vitrail.training.settings import Settings
from vitrail.training.task import Outcome, Task

HEAD_WIDTH = 64


def make_text_models(
    family: str,
    source: Source,  # noqa: ARG001 - the vocabulary is known once the text is split
    model: str | None,
    weights: str | Path | None,
    overrides: Sequence[str],
    seed: int,
) -> Callable[..., Model]:
    """Return a function that creates the model from its default size, the user's fields and the recipe's."""
    if model is not None:
        raise SpecError(
            "models of text have no names.",
            got=f"--model {model}.",
            hint="model.width=256 model.depth=6, without --model.",
        )
    if weights is not None:
        raise WeightsError(
            "models of text are trained from scratch.", got=f"--weights {weights}.", hint="no --weights."
        )
    module = plug.load(MODELS, family)
    spec = module.Spec().override_words(_with_shape(overrides))
    keys = [word.partition("=")[0] for word in _with_shape(overrides)]
    fixed = {"vocab", "pad", "causal", "context"} & set(keys)
    if fixed:
        name = min(fixed)
        raise SpecError(
            f"model.{name} follows from the recipe.", got=f"model.{name}.", hint="the settings context and vocab."
        )
    fields = {key: getattr(spec, key) for key in keys}

    def new_model(**more: Any) -> Model:
        torch.manual_seed(seed)
        machine.avoid_broken_tiles()
        return module.Model(module.Spec.parse({**more, **fields}))

    return new_model


def _with_shape(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the usual heads and hidden width of a block if only its width is given."""
    given = dict(word.partition("=")[::2] for word in overrides)
    width = given.get("width", "")
    if not width.isdecimal():
        return list(overrides)
    usual = {"heads": max(1, int(width) // HEAD_WIDTH), "hidden": 4 * int(width)}
    return [*overrides, *(f"{key}={value}" for key, value in usual.items() if key not in given)]


def train_text_model(task: Task, sizes: Sequence[Size]) -> Outcome:
    """Train a model of a size that suits the time."""
    task = choose_size(task, sizes)
    model = task.kind.new_model(task)
    progress = task.fit(model)
    val = task.infer(model, task.splits.val, "Validating")
    return Outcome(model, val, progress.step, (f"Trained from scratch for {progress.step:,} steps.",))


class Size(NamedTuple):
    """A size of model, and the number of epochs it needs to beat the smaller one before it."""

    epochs: float
    fields: dict[str, Any]


def choose_size(task: Task, sizes: Sequence[Size]) -> Task:
    """Return the task with the last size that can train long enough; each is slower than the one before.

    Fields that the user sets replace those of the size.
    """
    left, num, settings = task.seconds_left(), len(task.splits.train), task.settings
    assert isinstance(settings, Settings)

    def choose() -> int:
        number = 0
        for larger, size in enumerate(sizes[1:], start=1):
            if left is not None:
                larger_task = replace(task, new_model=partial(task.new_model, **size.fields))
                epochs = left * task.measure_speed(task.kind.new_model(larger_task)) / num
            else:
                epochs = settings.epochs or (settings.steps or 0) * settings.batch_size / num
            if epochs < size.epochs:
                break
            number = larger
        return number

    number = task.decide("size", choose)
    return replace(task, new_model=partial(task.new_model, **sizes[number].fields))
