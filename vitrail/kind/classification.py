"""Image classification, with one label per image or any number of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from vitrail.contract import Classifier, Model
from vitrail.data.table import Source
from vitrail.report.run import write_report as write_page
from vitrail.training.recipe.image import labels
from vitrail.training.recipe.image.models import make_image_models
from vitrail.training.recipe.image.prepare import prepare_images
from vitrail.training.recipe.image.splits import make_image_splits
from vitrail.training.settings import CommonSettings
from vitrail.training.splits import Splits
from vitrail.training.task import Task, no_answer_cost
from vitrail.training.view import View
from vitrail.training.world import World

NOUN = "images"
answer_cost = no_answer_cost
model_factory = make_image_models
preparation = prepare_images
check_source = labels.check_source
new_objective = labels.new_objective
finish = partial(labels.finish, kind="classification")


def make_splits(source: Source, settings: CommonSettings, view: View, world: World, **options: Any) -> Splits:
    """Take the splits of the data, or hold out images for validation."""
    return make_image_splits(
        source,
        settings,
        view,
        world,
        require=check_source,
        **options,
    )


def new_model(task: Task) -> Model:
    """Create the requested model, with an output per class."""
    return task.new_model(num_classes=len(task.splits.train.classes))


def write_report(path: Path, source: Source, *, model: Classifier | None = None) -> None:
    """Write the page of a run."""
    write_page(path, source, model=model)
