"""What all runs of classifiers share, whatever they classify: the loss, calibration, scores and tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vitrail.contract import Model
from vitrail.data.table import Source, Stream
from vitrail.errors import DataError
from vitrail.metric.summary import Summary
from vitrail.objective.classify import Classify, class_weights
from vitrail.run.calibrate import calibrate
from vitrail.run.card import model_card
from vitrail.run.predictions import PREDICTIONS, prediction_rows, summary_of, write_predictions, write_summaries
from vitrail.training.closing import answer_splits
from vitrail.training.evaluation import Answers
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.finish import write_run
from vitrail.training.task import Outcome, Task

MIN_PER_CLASS = 2  # samples


def check_source(train: Source, noun: str = "images") -> None:
    """Refuse data with a single class, or with a class of a single sample."""
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
            f"each class needs at least {MIN_PER_CLASS} {noun}: one for training, one for validation.",
            got=", ".join(few[:5]) + (f" and {len(few) - 5} more." if len(few) > 5 else "."),
            hint=f"more {noun} of it, or removing its folder.",
        )


def new_objective(task: Task, model: Model | None = None) -> Classify:  # noqa: ARG001 - it has no parameters
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


def finish(task: Task, recipe: str, outcome: Outcome, *, kind: str) -> dict[str, Any]:
    """Test and calibrate the model, write the files of the run, and return its result."""
    classes, multi_label = task.splits.train.classes, task.splits.train.multi_label
    answers = answer_splits(task, outcome)
    calibration = calibrate(outcome.val["logits"], outcome.val["label"], multi_label=multi_label)
    as_classifier(outcome.model).describe(kind=kind, labels=tuple(classes), calibration=calibration)
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
            facts=facts,
            result=result,
            summaries=summaries,
            loadable_by=opens,
            calibration=calibration,
            modality=task.splits.train.modalities[0],
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
