"""Logistic regression on pixels: what a model trained from scratch has to beat."""

from __future__ import annotations

import torch

from vitrail.data.rng import make_rng
from vitrail.data.table import Table
from vitrail.training.evaluation import infer
from vitrail.training.linear import fit_linear
from vitrail.training.task import Outcome, Task

SIDES = (8, 16)
ELEMENTS = 2**24  # pixels that are fitted in a few seconds
MINUTES = 5.0  # of a run that may spend that much
STRENGTH = 0.01  # scikit-learn's C


def fit_baseline(task: Task) -> Outcome | None:
    """A linear classifier of small images, fitted on as many as take a few seconds; None if a model was asked for."""
    train = task.sets.train
    if not task.free or not isinstance(train, Table):
        return None
    own = task.new_model(num_classes=0).spec.image_size
    side = max(side for side in SIDES if side <= max(SIDES[0], *own))
    model = task.new_model(name=f"linear_{side}", num_classes=len(task.sets.classes))
    elements = ELEMENTS * min(1.0, (task.settings.minutes or MINUTES) / MINUTES)
    num = min(len(train), int(elements / model.spec.width))
    rows = make_rng("order", seed=task.settings.seed, epoch=2).permutation(len(train))[:num]
    headless = task.new_model(name=f"linear_{side}", num_classes=0)
    pixels = infer(headless, task.loader(train.only(sorted(rows.tolist())), model.preprocess), task.world)
    linear = fit_linear(pixels.logits[None], pixels.labels, strength=STRENGTH, multi_label=task.sets.multi_label)
    with torch.no_grad():
        model.head.weight[: len(linear.weight)] = linear.weight
        model.head.bias[: len(linear.bias)] = linear.bias
    val = task.outputs(model, task.sets.val, "Validating the baseline")
    return Outcome(model, val, 0, (f"Logistic regression on {side} x {side} pixels, fitted on {num:,} images.",))
