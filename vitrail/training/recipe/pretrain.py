"""Pretraining without labels: hide patches of each image and predict them from the others.

    vitrail train photos --recipe pretrain --minutes 30
    vitrail train pets.zip --weights runs/photos-pretrain --minutes 10

`target` chooses what is predicted. `mae` (arXiv 2111.06377) hides three quarters of the patches and encodes only the
others, so that a step costs a fraction of one on whole images. `mean_colour`, `downsized` and `full_patch` are the
three targets of the Vision Transformer's paper (arXiv 2010.11929, section 4.6), with half of the patches hidden. Labels
are ignored; if there are any, nearest neighbours and a linear model on the features show what has been learned. With
`--weights`, pretraining goes on from them, with the learning rates of fine-tuning.

DeiT-Ti after 5 minutes of MAE on Oxford Pets without labels, one core, then a linear model on 5 labels per breed:
78.8 and 79.5 %; without pretraining 78.9 and 80.0 % (two seeds, benchmarks/few-pets.json).
CIFAR-10, `vit_nano_conv4_32`, two cores: after 4 minutes a linear model on the features reaches 40.3 % (one seed).
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from vitrail.data.augment import Augment
from vitrail.errors import SpecError
from vitrail.masking import MaskingSpec
from vitrail.spec import FinitePositive, PartialFraction
from vitrail.training.recipe.image.candidates import list_candidates
from vitrail.training.recipe.image.model_choice import choose_model
from vitrail.training.recipe.image.settings import FinetuneSettings, ImageSettings, ScratchSettings
from vitrail.training.task import Outcome, Task

KIND = "pretraining"


class PretrainSettings(ImageSettings, MaskingSpec):
    """What is hidden and predicted, in images that are not mixed."""

    @model_validator(mode="after")
    def _check_mixing(self) -> Self:
        if self.augment.mixup or self.augment.cutmix:
            raise SpecError(
                "mixed images are for labels.",
                got=f"augment.mixup={self.augment.mixup:g}, augment.cutmix={self.augment.cutmix:g}.",
                hint="the recipe pretrain without them.",
            )
        return self


class Spec(ScratchSettings, PretrainSettings):
    """The settings of a model that is pretrained from scratch."""

    label_smoothing: PartialFraction = 0.0
    small_until: PartialFraction = 0.0

    @model_validator(mode="after")
    def _check_strength(self) -> Self:
        if self.augment_strength not in ("auto", "light"):
            raise SpecError(
                "stronger augmentation is for labels; pretraining uses `augment` as it is.",
                got=f"augment_strength={self.augment_strength}.",
                hint="augment.policy=rand.",
            )
        return self


class TuningSpec(FinetuneSettings, PretrainSettings):
    """The settings of a model that goes on from weights: those of fine-tuning, which do not erase what it knows."""

    lr: FinitePositive = 1e-4
    label_smoothing: PartialFraction = 0.0
    augment: Augment = Augment(scale=(0.35, 1.0))


def spec(*, has_weights: bool) -> Any:
    """The settings, by what the model starts from."""
    return TuningSpec if has_weights else Spec


def train(task: Task) -> Outcome:
    """Pretrain the requested model, or one that suits the images and the time."""
    if not task.has_weights:
        task = choose_model(task, list_candidates(task.splits.train))
    model = task.kind.new_model(task)
    objective = task.kind.new_objective(task, model)
    progress = task.fit(model, objective)
    val = task.infer(model, task.splits.val, "Validating", objective)
    notes = [f"Pretrained for {progress.step:,} steps without labels."]
    if progress.rollbacks:
        notes.append(
            f"Training broke {progress.rollbacks} times and went back to a checkpoint, in the end with "
            f"{progress.lr_factor:g} of the learning rate: it was too high."
        )
    return Outcome(model, val, progress.step, tuple(notes), objective)
