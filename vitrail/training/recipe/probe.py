"""The linear probe: frozen features, and a regularised linear classifier whose strength cross-validation chooses.

    vitrail train pets.zip --weights deit_tiny_patch16_224/model.safetensors --recipe probe

The features of a few views of each picture (as it is, mirrored, cropped) are computed once; then fitting takes
seconds. The classifier becomes the model's head, so that the result is an ordinary model. `shots=5` takes five pictures
a class, as few-shot evaluations do.

Oxford Pets, 20 pictures of each of 37 breeds, DeiT-Ti/16, two cores: see docs/training.md.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from vitrail.data.augment import Augment
from vitrail.data.chance import chance, times_before
from vitrail.data.table import Source, Stream, Table
from vitrail.errors import DataError
from vitrail.training.judge import Outputs, outputs_of
from vitrail.training.linear import Linear, cross_validate, fit_linear
from vitrail.training.settings import Common
from vitrail.training.task import Outcome, Task

CROPS = Augment(scale=(0.5, 1.0))


class Spec(Common):
    """How the features are made and the classifier is fitted."""

    shots: PositiveInt | None = None
    """Pictures a class that are learned from; None for all of them."""
    crops: Annotated[int, Field(ge=0, le=64)] = 2
    """Cropped views of each picture, besides it and its mirror image."""
    folds: Annotated[int, Field(ge=2, le=20)] = 5
    """Parts of the pictures, each of which is predicted from the others to choose the strength."""


OWN_VALIDATION = True  # by cross-validation, so that no picture need be held out


def train(task: Task) -> Outcome:
    """Compute features, choose the strength, fit the head."""
    settings, sets = task.settings, task.sets
    crops, folds, shots = (
        getattr(settings, name, Spec.model_fields[name].default) for name in ("crops", "folds", "shots")
    )
    source = sets.train if shots is None else few(sets.train, shots, settings.seed)
    model = task.new_model(num_classes=0).eval().to(task.world.device)
    views = [
        features_of(task, model, source, None, mirrored=False, label="Features"),
        features_of(task, model, source, None, mirrored=True, label="Features, mirrored"),
        *(
            features_of(task, model, source, CROPS, mirrored=False, label="Features, cropped", seed=n)
            for n in range(crops)
        ),
    ]
    labels = views[0].labels
    features = torch.stack([view.logits for view in views])
    chosen = cross_validate(features, labels, folds=folds, several=sets.several, seed=settings.seed, view=task.view)
    linear = fit_linear(features, labels, strength=chosen.strength, several=sets.several)
    put_head(model, linear, len(sets.classes))
    if sets.val is not sets.train:
        val = task.outputs(model, sets.val, "Validating")
    else:
        val = Outputs(chosen.logits, labels, views[0].indices)
    how = f"strength C={chosen.strength:g} by cross-validation in {chosen.folds} folds"
    story = f"A linear classifier on frozen features, {how}."
    return Outcome(model, val, 0, (story,))


def features_of(
    task: Task, model: Any, source: Source, augment: Augment | None, *, mirrored: bool, label: str, seed: int = 0
) -> Outputs:
    """The features of all pictures, in the order of the source, under one view."""
    loader = task.loader(source, model.preprocess, augment=augment, seed=task.settings.seed * 64 + seed)
    network = Mirrored(model) if mirrored else model
    return outputs_of(
        network,
        loader,
        task.world,
        progress=lambda done, total: task.view.progress(label, done, total),
    )


class Mirrored(nn.Module):
    """A model that sees pictures mirrored."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B K"]:
        return self.model(images.flip(3))


def few(source: Source, shots: int, seed: int) -> Table:
    """So many pictures of each class, drawn by the seed; a class that has fewer gives all."""
    if isinstance(source, Stream) or source.starts is not None:
        raise DataError("few-shot learning needs one label a picture, in any order.", got="shards, or several labels.")
    order = chance("order", seed=seed, epoch=0).permutation(len(source))
    return source.only(np.sort(order[times_before(source.labels[order]) < shots]))


@torch.no_grad()
def put_head(model: Any, linear: Linear, num_classes: int) -> None:
    """The classifier as the model's head; of a distilled model, both heads, whose mean it then is."""
    model.replace_head(num_classes)
    for name, parameter in model.named_parameters():
        if name.startswith(("head.", "head_dist.")):
            value: Float[Tensor, ...] = linear.weight if name.endswith("weight") else linear.bias
            parameter.copy_(value.view(parameter.shape))
