"""The linear probe: frozen features, and logistic regression with C chosen by cross-validation.

    vitrail train pets.zip --weights deit_tiny_patch16_224/model.safetensors --recipe probe

The features of each image and its mirror image are computed once; then fitting takes seconds. The classifier becomes
the model's head, so that the result is an ordinary model. `shots=5` trains on five images per class, as in few-shot
evaluations.

Oxford Pets, 20 images of each of 37 breeds, DeiT-Ti/16, two cores: 86.2 % test accuracy in 44 seconds.
"""

from __future__ import annotations

import time
from copy import deepcopy
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from vitrail.contract import Classifier, Objective
from vitrail.data.rng import make_rng, times_before
from vitrail.data.table import Source, Stream, Table
from vitrail.errors import DataError
from vitrail.training import throughput
from vitrail.training.evaluation import Answers, infer
from vitrail.training.learner import Learner
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.features import Features, linear_targets
from vitrail.training.recipe.image.linear import CrossValidation, Linear, cross_validate, fit_linear, put_head
from vitrail.training.settings import CommonSettings
from vitrail.training.task import Outcome, Task


class Spec(CommonSettings):
    """The settings of the probe."""

    shots: PositiveInt | None = None
    """Training images per class; None for all of them."""
    folds: Annotated[int, Field(ge=2, le=20)] = 5
    """Folds of the cross-validation that chooses C."""


NEEDS_WEIGHTS = True
CROSS_VALIDATES = True  # so that no images need to be held out


class Views(NamedTuple):
    """The features of each image, for each view of it (as it is, and mirrored)."""

    features: Float[Tensor, "V n D"]
    labels: Int64[Tensor, " n"] | Float[Tensor, "n K"]
    indices: Int64[Tensor, " n"]
    names: tuple[str, ...]


class Probe(NamedTuple):
    """A model without a head, its features, and the C chosen for them."""

    model: Classifier
    views: Views
    selection: CrossValidation
    objective: Objective

    @property
    def cross_validated(self) -> Answers:
        """The answers for each image of a classifier fitted without it."""
        answers = self.objective.interpret(self.selection.logits, {"label": self.views.labels})
        return Answers(answers, self.views.indices, self.views.names)


def train(task: Task) -> Outcome:
    """Compute features, choose C, and fit the head."""
    return make_outcome(task, fit_probe(task))


def fit_probe(task: Task) -> Probe:
    """Compute features and choose C."""
    settings, splits = task.settings, task.splits
    shots, folds = _setting(task, "shots"), _setting(task, "folds")
    source = splits.train if shots is None else sample_shots(splits.train, shots, settings.seed)
    model = as_classifier(task.new_model(num_classes=0)).eval().to(task.world.device)
    views = compute_views(task, model, source)
    objective = task.kind.new_objective(task)
    targets = linear_targets(objective, views.labels)
    selection = cross_validate(
        views.features, targets, folds=folds, multi_label=source.multi_label, seed=settings.seed, view=task.view
    )
    return Probe(model, views, selection, objective)


def make_outcome(task: Task, probe: Probe) -> Outcome:
    """Fit the head on the features, and return the complete model with its answers for the validation images."""
    splits = task.splits
    model = fit_head(task, probe, probe.views.features, probe.views.labels)
    cross_validated = splits.val is splits.train
    val = probe.cross_validated if cross_validated else task.infer(model, splits.val, "Validating")
    choice = f"C={probe.selection.c_value:g} chosen by cross-validation in {probe.selection.folds} folds"
    return Outcome(model, val, 0, (f"A linear model on frozen features, {choice}.",))


def fit_head(task: Task, probe: Probe, features: Float[Tensor, "V n D"], labels: Tensor) -> Classifier:
    """Fit the head on features of images, and return the complete model."""
    train = task.splits.train
    targets, c_value = linear_targets(probe.objective, labels), probe.selection.c_value
    linear = fit_linear(features, targets, c_value=c_value, multi_label=train.multi_label)
    return attach_head(probe.model, linear, train.num_outputs)


def refit(task: Task, probe: Probe, outcome: Outcome) -> Outcome:
    """Fit the head on the validation images too, if they were held out; their answers stay those of before."""
    if task.splits.all_train is None:
        return outcome
    speed, views = task.timing.speed, probe.views
    more = compute_views(task, probe.model, task.splits.val)
    task.timing.speed = speed or task.timing.speed  # that of training
    features, labels = torch.cat([views.features, more.features], dim=1), torch.cat([views.labels, more.labels])
    notes = (*outcome.notes, f"The probe was refitted on all {len(task.splits.all_train):,} images.")
    return outcome._replace(model=fit_head(task, probe, features, labels), notes=notes)


def _setting(task: Task, name: str) -> Any:
    """A setting of the probe, or its default if the probe is the first stage of another recipe."""
    return getattr(task.settings, name, Spec.model_fields[name].default)


def compute_views(task: Task, model: Classifier, source: Source) -> Views:
    """Compute the features of each image and its mirror image, in bfloat16 if that is faster."""
    loader = task.make_loader(source, task.kind.preparation(task, model, training=False))
    plain, mirrored = Learner(model, Features()), Learner(Mirrored(model), Features())
    fields = next(loader.batches()).fields
    bfloat16 = task.decide(
        "features_in_bfloat16", lambda: throughput.bfloat16_answers_faster(plain, fields, task.world)
    )
    seconds = throughput.time_answers(plain, fields, task.world, bfloat16=bfloat16) + throughput.time_data(loader)
    forecast = task.world.size / seconds
    task.view.say(
        f"Computing features of {len(source):,} images and their mirror images in "
        f"{'bfloat16' if bfloat16 else 'float32'}: about {forecast:,.0f} per second, "
        f"{2 * len(source) / forecast:,.0f} s in all."
    )
    began = time.monotonic()
    answers = [
        infer(
            learner,
            loader,
            task.world,
            bfloat16=bfloat16,
            progress=lambda done, total, label=label: task.view.progress(label, done, total),  # type: ignore[misc]
        )
        for label, learner in (("Features", plain), ("Features, mirrored", mirrored))
    ]
    task.timing.training += time.monotonic() - began
    measured = 2 * len(source) / (time.monotonic() - began)
    task.timing.speed = {"forecast": round(forecast, 1), "measured": round(measured, 1)}
    features = torch.stack([each["features"] for each in answers])
    return Views(features, answers[0]["label"], answers[0].indices, answers[0].names)


class Mirrored(nn.Module):
    """A model that mirrors its input."""

    TAKES = ("image",)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B K"]:
        return self.model(images.flip(3))


def sample_shots(source: Source, shots: int, seed: int) -> Table:
    """Sample `shots` images per class by the seed; all images of a class that has fewer."""
    if isinstance(source, Stream) or source.multi_label or not source.classes:
        raise DataError(
            "few-shot training needs one label per image and random access.",
            got="shards, multi-label data, or data without classes.",
        )
    order = make_rng("order", seed=seed, epoch=0).permutation(len(source))
    return source.only(np.sort(order[times_before(source.labels[order]) < shots]))


def attach_head(headless: Classifier, linear: Linear, num_classes: int) -> Classifier:
    """Return a copy with the classifier as its head; a distilled model averages two heads, so both get it."""
    model = deepcopy(headless)
    model.replace_head(num_classes)
    put_head(model, linear)
    return model
