"""Pretraining on images without labels; the result is a backbone that other runs start from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.contract import Classifier, Model
from vitrail.data.masked_image import MaskedImagePreparation
from vitrail.data.rng import make_rng
from vitrail.data.table import Source, Stream, Table
from vitrail.data.unlabelled import open_unlabelled
from vitrail.errors import DataError
from vitrail.inspection.reconstruction import write_decoder
from vitrail.masking import MaskingSpec, build_objective, prepare_masked
from vitrail.metric.tokens import mean_per_token, normal_interval
from vitrail.objective.masked_image.base import MaskedImage, probe_features
from vitrail.report.pretraining import write_pretraining_report
from vitrail.run.artefact import PRETRAINING
from vitrail.run.directory import write_json
from vitrail.run.predictions import SUMMARY
from vitrail.run.pretraining_card import pretraining_card
from vitrail.training.evaluation import Answers
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.finish import write_run
from vitrail.training.recipe.image.models import make_image_models
from vitrail.training.recipe.pretrain import PretrainSettings
from vitrail.training.settings import CommonSettings
from vitrail.training.splits import Splits, check_training_split
from vitrail.training.task import Outcome, Task, no_answer_cost
from vitrail.training.view import View
from vitrail.training.world import World

NOUN = "images"
answer_cost = no_answer_cost
open_data = open_unlabelled
MIN_IMAGES = 4
MAX_VAL = 1000  # images: enough for the loss and for nearest neighbours


model_factory = make_image_models


def check_request(settings: CommonSettings, new_model: Callable[..., Classifier]) -> None:
    """Reject a model whose patches cannot be hidden in the way that the settings say."""
    assert isinstance(settings, PretrainSettings)
    build_objective(settings, new_model(num_classes=0))


def make_splits(source: Source, settings: CommonSettings, view: View, world: World, **_: Any) -> Splits:
    """Use all images but those for validation and the test split; labels play no part, so any images are held out."""
    names = source.split_names
    if isinstance(source, Stream):
        if "val" not in names:
            raise DataError(
                "shards need a validation split.", got=f"{source.origin} without one.", hint="a folder val with shards."
            )
        return Splits(source.split("train"), source.split("val"), None, "The data has its own validation split.")
    check_training_split(source)
    train = source.split("train") if names else source
    if len(train) < MIN_IMAGES:
        raise DataError(f"pretraining needs at least {MIN_IMAGES} images.", got=f"{len(train)}.", hint="more images.")
    rng = make_rng("split", seed=settings.seed, epoch=0)
    if "val" in names:
        val = source.split("val")
        rows = rng.permutation(len(val))[:MAX_VAL]
        return Splits(train, val.only(sorted(rows.tolist())), None, "The data has its own validation split.")
    num = min(max(round(settings.val_share * len(train)), 1), MAX_VAL)
    order = rng.permutation(len(train))
    val_rows, train_rows = (sorted(part.tolist()) for part in (order[:num], order[num:]))
    note = f"{num:,} of {len(train):,} images were held out to measure the loss."
    return Splits(train.only(train_rows), train.only(val_rows), None, note)


def new_model(task: Task) -> Model:
    """Create the requested model without a head."""
    return task.new_model(num_classes=0)


def new_objective(task: Task, model: Model | None = None) -> MaskedImage:
    """Create what predicts hidden patches of this model."""
    assert model is not None, "the decoder is made for a model"
    return build_objective(_settings(task), model)


def preparation(task: Task, model: Model, *, training: bool) -> MaskedImagePreparation:
    """Images with hidden patches."""
    settings = _settings(task)
    return prepare_masked(settings, model, settings.augment if training else None)


def _settings(task: Task) -> PretrainSettings:
    assert isinstance(task.settings, PretrainSettings)
    return task.settings


def finish(task: Task, recipe: str, outcome: Outcome) -> dict[str, Any]:
    """Write the files of the run, and return its result."""
    model, objective, settings = as_classifier(outcome.model), outcome.objective, _settings(task)
    assert isinstance(objective, MaskedImage)
    model.describe(kind=PRETRAINING, labels=())
    task.config["masking"] = {name: getattr(settings, name) for name in MaskingSpec.model_fields}
    score = score_answers(outcome.val)
    if task.world.is_rank_zero:
        write_decoder(task.run, objective)
    return write_run(
        task,
        recipe,
        outcome,
        scores={"val": score},
        objective="mae" if settings.target == "mae" else "masked_patches",
        facts={
            "target": settings.target,
            "mask_rate": settings.masking.rate,
            "weights": task.config["request"]["weights"],
        },
        card=lambda facts, result, opens: pretraining_card(facts=facts, result=result, loadable_by=opens),
        write_tables=lambda document: write_json(task.run / SUMMARY, {**document, "val": score}),
    )


def score_answers(answers: Answers) -> dict[str, Any]:
    """The score of a split, as in result.json."""
    loss, error = mean_per_token(answers["loss"], answers["units"])
    interval = normal_interval(loss, error)
    probes = {score.metric.name: score.value for score in probe_features(answers.fields)}
    return {
        "masked_loss": loss,
        "n": answers.num,
        "interval": None if interval is None else list(interval),
        "knn": probes.get("knn"),
        "linear": probes.get("linear"),
    }


def write_report(path: Path, source: Source, *, model: Classifier | None = None) -> None:
    """Write the page of a run."""
    assert isinstance(source, (Table, Stream))
    write_pretraining_report(path, source)
