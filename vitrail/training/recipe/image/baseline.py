"""Logistic regression on pixels, ridge regression for numbers: what a model trained from scratch has to beat."""

from __future__ import annotations

from vitrail.data.rng import make_rng
from vitrail.data.table import IMAGE, Source, Table
from vitrail.training.evaluation import infer
from vitrail.training.learner import Learner
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.features import Features, linear_targets
from vitrail.training.recipe.image.linear import fit_linear, put_head
from vitrail.training.task import Outcome, Task

SIDES = (8, 16)
MAX_ELEMENTS = 2**24  # pixels that are fitted in a few seconds
FULL_MINUTES = 5.0  # shorter runs fit fewer pixels
C_VALUE = 0.01  # scikit-learn's C


def fit_baseline(task: Task) -> Outcome | None:
    """Fit a linear classifier on small images for a few seconds; None if the user chose the model, and for clips."""
    train = task.splits.train
    if not task.can_choose_model or not isinstance(train, Table) or train.modalities != IMAGE:
        return None
    image_size = as_classifier(task.new_model(num_classes=0)).spec.image_size
    side = max(side for side in SIDES if side <= max(SIDES[0], *image_size))
    model = as_classifier(task.new_model(name=f"linear_{side}", num_classes=train.num_outputs))
    num_elements = MAX_ELEMENTS * min(1.0, (task.settings.minutes or FULL_MINUTES) / FULL_MINUTES)
    num_images = min(len(train), int(num_elements / model.spec.width))
    rows = make_rng("order", seed=task.settings.seed, epoch=2).permutation(len(train))[:num_images]
    headless = task.new_model(name=f"linear_{side}", num_classes=0)
    prepare = task.kind.preparation(task, headless, training=False)
    pixels = infer(
        Learner(headless, Features()), task.make_loader(train.only(sorted(rows.tolist())), prepare), task.world
    )
    targets = linear_targets(task.kind.new_objective(task), pixels["label"])
    linear = fit_linear(pixels["features"][None], targets, c_value=C_VALUE, multi_label=train.multi_label)
    put_head(model, linear)
    val = task.infer(model, task.splits.val, "Validating the baseline")
    return Outcome(
        model,
        val,
        0,
        (f"{name_baseline(train).capitalize()} on {side} x {side} pixels, fitted on {num_images:,} images.",),
    )


def name_baseline(source: Source) -> str:
    """What the baseline is called."""
    return "logistic regression" if source.values is None else "ridge regression"
