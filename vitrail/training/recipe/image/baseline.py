"""Logistic regression on pixels: the baseline that a model trained from scratch has to beat."""

from __future__ import annotations

from vitrail.data.rng import make_rng
from vitrail.data.table import Table
from vitrail.training.evaluation import infer
from vitrail.training.learner import Learner
from vitrail.training.recipe.image.linear import fit_linear, put_head
from vitrail.training.task import Outcome, Task

SIDES = (8, 16)
MAX_ELEMENTS = 2**24  # pixels that are fitted in a few seconds
FULL_MINUTES = 5.0  # shorter runs fit fewer pixels
C_VALUE = 0.01  # scikit-learn's C


def fit_baseline(task: Task) -> Outcome | None:
    """Fit a linear classifier on small images for a few seconds; None if the user chose the model."""
    train = task.splits.train
    if not task.can_choose_model or not isinstance(train, Table):
        return None
    image_size = task.new_model(num_classes=0).spec.image_size
    side = max(side for side in SIDES if side <= max(SIDES[0], *image_size))
    model = task.new_model(name=f"linear_{side}", num_classes=train.num_outputs)
    num_elements = MAX_ELEMENTS * min(1.0, (task.settings.minutes or FULL_MINUTES) / FULL_MINUTES)
    num_images = min(len(train), int(num_elements / model.spec.width))
    rows = make_rng("order", seed=task.settings.seed, epoch=2).permutation(len(train))[:num_images]
    headless = task.new_model(name=f"linear_{side}", num_classes=0)
    prepare = task.kind.preparation(task, headless, training=False)
    learner = Learner(headless, task.kind.new_objective(task))
    pixels = infer(learner, task.make_loader(train.only(sorted(rows.tolist())), prepare), task.world)
    linear = fit_linear(pixels["logits"][None], pixels["label"], c_value=C_VALUE, multi_label=train.multi_label)
    put_head(model, linear)
    val = task.infer(model, task.splits.val, "Validating the baseline")
    return Outcome(model, val, 0, (f"Logistic regression on {side} x {side} pixels, fitted on {num_images:,} images.",))
