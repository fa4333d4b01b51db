"""Classification of clips, sounds or videos, with one label per clip or any number of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.contract import Classifier, Model
from vitrail.data.table import Source
from vitrail.errors import SpecError
from vitrail.report.run import write_report as write_page
from vitrail.training.recipe.clip.models import make_clip_models
from vitrail.training.recipe.clip.prepare import prepare_clips
from vitrail.training.recipe.image import labels
from vitrail.training.recipe.image.splits import make_image_splits
from vitrail.training.settings import CommonSettings
from vitrail.training.splits import Splits
from vitrail.training.task import Task, no_answer_cost
from vitrail.training.view import View
from vitrail.training.world import World

NOUN = "clips"
PREPARES = True
"""Whether `prepare.key=value` changes the preprocessing."""
RECIPES = ("auto", "scratch", "finetune")
answer_cost = no_answer_cost
model_factory = make_clip_models
preparation = prepare_clips
new_objective = labels.new_objective
finish = partial(labels.finish, kind="clips")


def check_recipe(recipe: str, *, has_weights: bool) -> None:
    """Refuse a recipe that is for images only."""
    if recipe not in RECIPES or (recipe == "auto" and has_weights):
        raise SpecError(
            f"the recipe {recipe}{' with weights' if recipe == 'auto' else ''} is for images.",
            got="sounds or videos.",
            hint="--recipe finetune." if has_weights else "--recipe scratch.",
        )


def check_request(settings: CommonSettings, new_model: Callable[..., Classifier]) -> None:
    """Refuse a setting that is for images only."""
    if getattr(settings, "head_from", "zeros") != "zeros":
        raise SpecError("head_from=probe is for images.", got="sounds or videos.", hint="head_from=zeros.")


def make_splits(source: Source, settings: CommonSettings, view: View, world: World, **options: Any) -> Splits:
    """Take the splits of the data, or hold out clips for validation."""
    require = partial(labels.check_source, noun=NOUN)
    return make_image_splits(source, settings, view, world, require=require, noun=NOUN, **options)


def new_model(task: Task) -> Model:
    """Create the requested model, with an output per class."""
    return task.new_model(num_classes=len(task.splits.train.classes))


def write_report(path: Path, source: Source, *, model: Classifier | None = None) -> None:
    """Write the page of a run."""
    write_page(path, source, model=model)
