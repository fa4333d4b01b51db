"""Image regression: one number per image, with a calibrated range."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.calibration import COVERAGE, Calibration
from vitrail.contract import Classifier, Model
from vitrail.data.loader import Policy
from vitrail.data.prepare.image import image_loader
from vitrail.data.table import Source, Stream, Table
from vitrail.engine.exported import ImageModel
from vitrail.errors import DataError, SpecError
from vitrail.metric.numbers import NumberSummary, conformal_half_width, summarise_numbers
from vitrail.objective.regress import Regress
from vitrail.report.number_run import write_number_report
from vitrail.run.artefact import NUMBER
from vitrail.run.number_card import number_card
from vitrail.run.number_predictions import NumberRow, number_rows, write_number_rows, write_number_summaries
from vitrail.run.predictions import PREDICTIONS
from vitrail.training.closing import answer_splits
from vitrail.training.evaluation import Answers, ProgressCallback, infer
from vitrail.training.learner import Learner
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
MIN_IMAGES = 4
MAX_STRATA = 10
MIN_PER_STRATUM = 20  # images


def check_source(train: Source) -> None:
    """Refuse data with too few images, or with a single number."""
    assert isinstance(train, Table)
    assert train.values is not None
    if len(train) < MIN_IMAGES:
        raise DataError(f"regression needs at least {MIN_IMAGES} images.", got=f"{len(train)}.", hint="more images.")
    if np.ptp(train.values) == 0:
        raise DataError(
            "regression needs different numbers to learn from.",
            got=f"{len(train)} images, all with {train.values[0]:g}.",
            hint="another --target.",
        )


def stratify(table: Table) -> Table:
    """Hold out the same fraction of low, middle and high numbers."""
    assert table.values is not None
    num = int(np.clip(len(table) // MIN_PER_STRATUM, 1, MAX_STRATA))
    edges = np.unique(np.quantile(table.values, np.linspace(0, 1, num + 1)[1:-1]))
    strata = np.searchsorted(edges, table.values, side="right").astype(np.int32)
    present, labels = np.unique(strata, return_inverse=True)
    return replace(table, classes=tuple(map(str, present)), labels=labels.astype(np.int32), values=None)


def make_splits(source: Source, settings: CommonSettings, view: View, world: World, **options: Any) -> Splits:
    """Take the splits of the data, or hold out images for validation."""
    return make_image_splits(
        source,
        settings,
        view,
        world,
        require=check_source,
        stratum="range of numbers",
        stratify=stratify,
        **options,
    )


def new_model(task: Task) -> Model:
    """Create the requested model with one output, which starts at the mean.

    Weights of another regression run have a head for numbers of their own scale, so it is always a new one.
    """
    model = as_classifier(task.new_model(num_classes=1))
    model.replace_head(1)
    return model


def new_objective(task: Task, model: Model | None = None) -> Regress:
    """Create the loss function, with the mean and standard deviation of the training data."""
    values = task.splits.train.values
    assert values is not None
    if task.settings.class_weights:
        raise SpecError("class weights are for classes.", got="class_weights=true.", hint="class_weights=false.")
    return Regress(mean=float(values.mean()), std=float(values.std()) or 1.0)


def finish(task: Task, recipe: str, outcome: Outcome) -> dict[str, Any]:
    """Test the model, calibrate its ranges, write the files of the run, and return its result."""
    assert not isinstance(task.splits.train, Stream)
    answers = answer_splits(task, outcome)
    objective = new_objective(task)
    errors = objective.sample_losses(outcome.val.fields).numpy()
    half_width = conformal_half_width(errors, COVERAGE) if np.isfinite(errors).all() else None
    objective.fold_into(as_classifier(outcome.model).heads)
    target = task.config.get("request", {}).get("target", NUMBER)
    calibration = Calibration(half_width=half_width, n=len(errors))
    as_classifier(outcome.model).describe(kind="regression", labels=(target,), calibration=calibration)
    summaries = {split: _summarise(each, half_width) for split, each in answers.items()}
    found = {split: summary for split, summary in summaries.items() if summary is not None}

    def write_tables(facts: dict[str, Any]) -> None:
        rows = [
            row
            for split, each in answers.items()
            for row in number_rows(split, each.names, each["number"], each["label"], half_width)
        ]
        write_number_rows(task.run / PREDICTIONS, rows)
        write_number_summaries(task.run, facts, found)

    return write_run(
        task,
        recipe,
        outcome,
        scores={split: _score(summary) for split, summary in summaries.items()},
        objective="regress",
        facts={"target": target},
        card=lambda facts, result, opens: number_card(
            facts=facts, result=result, summaries=found, loadable_by=opens, calibration=calibration
        ),
        write_tables=write_tables,
    )


def _summarise(answers: Answers, half_width: float | None) -> NumberSummary | None:
    """The scores of a split; None if there are none, or if numbers are not finite."""
    if not answers.num or not bool(answers["number"].isfinite().all()):
        return None
    predicted, true = (answers[name].double().numpy() for name in ("number", "label"))
    return summarise_numbers(predicted, true, half_width=half_width)


def _score(summary: NumberSummary | None) -> dict[str, Any]:
    """The score of a split, as in result.json."""
    if summary is None:
        return {"mae": None, "r2": None, "n": 0, "interval": None}
    return {
        "mae": summary.mae,
        "r2": summary.r2,
        "n": summary.n,
        "interval": list(summary.interval),
        "coverage": summary.coverage,
    }


@dataclass(frozen=True, kw_only=True)
class NumberEvaluation(NumberSummary):
    """The scores of a regression model on a data set, with its predictions."""

    target: str
    rows: tuple[NumberRow, ...]
    skipped: tuple[str, ...]
    changes: tuple[str, ...]
    split: str | None
    learned_from: bool
    """Whether the run was trained on these images, so that the scores say nothing about other images."""


def evaluate(
    network: ImageModel,
    source: Source,
    *,
    policy: Policy,
    batch_size: int,
    split: str | None,
    learned_from: bool,
    progress: ProgressCallback | None,
) -> NumberEvaluation:
    """Evaluate a finished model, which predicts the number itself."""
    loader = image_loader(source, network.preprocess, batch_size=batch_size, policy=policy)
    answers = infer(Learner(network, Regress()), loader, World(), progress=progress)
    half_width = network.calibration.half_width
    summary = _summarise(answers, half_width)
    if summary is None:
        raise DataError(
            "there are no finite predictions to score.",
            got=f"{answers.num} images read, {len(loader.skipped)} unreadable.",
            hint="vitrail check.",
        )
    return NumberEvaluation(
        **{field.name: getattr(summary, field.name) for field in fields(summary)},
        target=network.labels[0],
        rows=tuple(number_rows(split or "", answers.names, answers["number"], answers["label"], half_width)),
        skipped=tuple(f"{finding.path}: {finding.detail}" for finding in loader.skipped),
        changes=network.changes,
        split=split,
        learned_from=learned_from,
    )


def write_report(path: Path, source: Source, *, model: Classifier | None = None) -> None:
    """Write the page of a run."""
    write_number_report(path, source, model=model)
