"""Image classification, with one label per image or any number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.contract import Classifier, Model
from vitrail.data.table import Source, Stream
from vitrail.errors import DataError
from vitrail.metric.summary import Summary
from vitrail.objective.classify import Classify, class_weights
from vitrail.report.run import write_report as write_page
from vitrail.run.calibrate import calibrate
from vitrail.run.card import model_card
from vitrail.run.predictions import PREDICTIONS, prediction_rows, summary_of, write_predictions, write_summaries
from vitrail.training.closing import answer_splits
from vitrail.training.evaluation import Answers
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.finish import write_run
from vitrail.training.recipe.image.models import make_image_models
from vitrail.training.recipe.image.prepare import prepare_images
from vitrail.training.recipe.image.splits import make_image_splits
from vitrail.training.settings import CommonSettings
from vitrail.training.splits import Splits
from vitrail.training.task import Outcome, Task, no_answer_cost
from vitrail.training.view import View
from vitrail.training.world import World

NOUN = "images"
answer_cost = no_answer_cost
model_factory = make_image_models
preparation = prepare_images
MIN_PER_CLASS = 2  # images


def check_source(train: Source) -> None:
    """Refuse data with a single class, or with a class of a single image."""
    if len(train.classes) < 2 and not train.multi_label:
        raise DataError(
            "there is only one class.",
            got=f"{train.classes[0]!r}." if train.classes else "none.",
            hint="at least two classes.",
        )
    if isinstance(train, Stream):
        return
    counts = np.bincount(train.labels, minlength=len(train.classes))
    few = [f"{name!r} ({count})" for name, count in zip(train.classes, counts, strict=True) if count < MIN_PER_CLASS]
    if few:
        raise DataError(
            f"each class needs at least {MIN_PER_CLASS} images: one for training, one for validation.",
            got=", ".join(few[:5]) + (f" and {len(few) - 5} more." if len(few) > 5 else "."),
            hint="more images of it, or removing its folder.",
        )


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


def new_objective(task: Task, model: Model | None = None) -> Classify:
    """Create the loss function."""
    settings, train = task.settings, task.splits.train
    weights = None
    if settings.class_weights:
        if isinstance(train, Stream):
            raise DataError("class weights need counted classes.", got="shards.", hint="class_weights=false.")
        weights = class_weights(torch.from_numpy(np.bincount(train.labels, minlength=len(train.classes))))
    return Classify(
        multi_label=train.multi_label, label_smoothing=getattr(settings, "label_smoothing", 0.0), weights=weights
    )


def finish(task: Task, recipe: str, outcome: Outcome) -> dict[str, Any]:
    """Test and calibrate the model, write the files of the run, and return its result."""
    classes, multi_label = task.splits.train.classes, task.splits.train.multi_label
    answers = answer_splits(task, outcome)
    calibration = calibrate(outcome.val["logits"], outcome.val["label"], multi_label=multi_label)
    as_classifier(outcome.model).describe(kind="classification", labels=tuple(classes), calibration=calibration)
    summaries = {
        split: summary_of(each["logits"], each["label"], classes, calibration)
        for split, each in answers.items()
        if each.num and bool(each["logits"].isfinite().all())
    }

    def write_tables(facts: dict[str, Any]) -> None:
        rows = [
            row
            for split, each in answers.items()
            for row in prediction_rows(split, each.names, each["logits"], each["label"], classes, calibration)
        ]
        write_predictions(task.run / PREDICTIONS, rows)
        write_summaries(task.run, facts, summaries)

    return write_run(
        task,
        recipe,
        outcome,
        scores={split: _score(summaries.get(split), each) for split, each in answers.items()},
        objective="classify",
        facts={"classes": len(classes), "multi_label": multi_label},
        card=lambda facts, result, opens: model_card(
            facts=facts, result=result, summaries=summaries, loadable_by=opens, calibration=calibration
        ),
        write_tables=write_tables,
    )


def _score(summary: Summary | None, answers: Answers) -> dict[str, Any]:
    """The score of a split, as in result.json."""
    if summary is None:  # outputs that are not finite count as wrong
        return {"map" if answers["label"].ndim == 2 else "top1": 0.0, "n": answers.num, "interval": [0.0, 1.0]}
    if summary.map is not None and summary.map_interval is not None:
        return {"map": summary.map, "n": summary.n, "interval": list(summary.map_interval)}
    return {"top1": summary.top1, "n": summary.n, "interval": list(summary.interval)}


def write_report(path: Path, source: Source, *, model: Classifier | None = None) -> None:
    """Write the page of a run."""
    write_page(path, source, model=model)
