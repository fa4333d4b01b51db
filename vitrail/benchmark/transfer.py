"""The table of transfer results: ours beside the paper's (arXiv 2010.11929, tables 2 and 9), and why they differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from statistics import fmean, variance
from typing import Any, NamedTuple

import numpy as np
import yaml

from vitrail.metric.interval import Interval, mean_proportion_interval, wilson_interval

TABLE, OTHER = "table", "other"
VTAB = ("natural", "specialized", "structured")
NOT_GIVEN, NOT_IN_PAPER = "not given", "not in the paper's table"


class Column(NamedTuple):
    """A model of the paper's table."""

    title: str
    model: str
    """The beginning of its name in the catalogue."""
    params: int
    """In millions."""


class PaperTask(NamedTuple):
    """A row of the paper's tables."""

    group: str
    title: str
    names: tuple[str, ...]
    """Names of the data set, as `plain_name` writes them."""
    classes: int
    train: int
    test: int
    side: int
    """The resolution of the paper's ViTs, in pixels."""
    scores: tuple[float, ...]
    """Accuracies in per cent, for the first columns."""


class PaperTables(NamedTuple):
    """The paper's tables."""

    columns: tuple[Column, ...]
    groups: dict[str, str]
    """The title of each group of tasks."""
    tasks: tuple[PaperTask, ...]
    vtab: tuple[float, ...]
    """The mean over VTAB's tasks in per cent, for the first columns."""


class SeedScore(NamedTuple):
    """A recipe on a data set with one seed: the run with the best validation score, and its test accuracy."""

    seed: int
    run: str
    val: float
    test: float
    num_test: int
    tried: dict[str, float]
    """The validation score of each run that was tried, by its folder."""
    steps: dict[str, int]
    """Their steps: in minutes on a busy machine some get fewer than others."""
    seconds: float
    """Of all of them."""


class RecipeScore(NamedTuple):
    """A recipe on a data set: the mean over seeds."""

    value: float
    interval: Interval
    """95 %, for both the test images and the seeds."""
    spread: float | None
    """The standard deviation over seeds, if there are several."""
    effective_num: float
    """Test images that would give this interval by themselves."""
    seeds: tuple[SeedScore, ...]


class DataResult(NamedTuple):
    """A data set that was given, what was used of it, and the score of each recipe."""

    name: str
    data: str
    num_classes: int
    num_available: int
    """Training images that the data has."""
    num_train: int
    num_test: int
    scores: dict[str, RecipeScore]


class TransferRow(NamedTuple):
    """A row of the table: ours, the paper's, and why they differ."""

    group: str
    title: str
    name: str | None
    """Of the data set; None if it was not given."""
    scores: dict[str, RecipeScore]
    paper: tuple[float | None, ...]
    reasons: tuple[str, ...]


class MeanRow(NamedTuple):
    """A mean over data sets, and the paper's over the same ones."""

    title: str
    num: int
    total: int | None
    """Tasks that VTAB has here; None for the mean over all data sets."""
    scores: dict[str, tuple[float, Interval]]
    paper: tuple[float | None, ...]


class Backbone(NamedTuple):
    """The model that is transferred."""

    name: str
    num_params: int
    image_size: tuple[int, ...]
    changes: tuple[str, ...] = ()
    """How its weights were adapted to that size."""


@cache
def paper_tables() -> PaperTables:
    """Read the paper's tables."""
    content: Any = yaml.safe_load(files("vitrail.benchmark").joinpath("transfer.yaml").read_text(encoding="utf-8"))
    columns = tuple(Column(**each) for each in content["columns"])
    tasks = (
        PaperTask(**{**each, "names": tuple(each["names"]), "scores": tuple(each["scores"])})
        for each in content["tasks"]
    )
    return PaperTables(columns, content["groups"], tuple(tasks), tuple(content["vtab"]))


def plain_name(name: str) -> str:
    """The name of a data set without case and punctuation: `CIFAR-10` and `cifar_10` are the same."""
    return re.sub(r"[\W_]", "", name.casefold())


def pool_seeds(seeds: Sequence[SeedScore]) -> RecipeScore:
    """The mean over seeds, and its interval: Wilson's, with as many images as give the variance of images and seeds."""
    values = [each.test for each in seeds]
    value, num = fmean(values), float(seeds[0].num_test)
    spread = variance(values) if len(values) > 1 else 0.0
    of_images = value * (1 - value) / num
    effective = num if not of_images else num * of_images / (of_images + spread / len(values))
    interval = wilson_interval(value * effective, effective)
    return RecipeScore(value, interval, spread**0.5 if len(values) > 1 else None, effective, tuple(seeds))


def mean_of(scores: Sequence[RecipeScore]) -> tuple[float, Interval]:
    """The mean over data sets, each counted once, and its interval."""
    nums = np.array([each.effective_num for each in scores])
    hits = np.array([each.value for each in scores]) * nums
    return fmean(each.value for each in scores), mean_proportion_interval(hits, nums)


def common_reasons(backbone: Backbone, recipes: Sequence[str], minutes: float) -> tuple[str, ...]:
    """Why no row can equal the paper's."""
    columns = paper_tables().columns
    params = f"{backbone.num_params / 1e6:,.1f} M parameters"
    same = [column.title for column in columns if backbone.name.startswith(column.model)]
    reasons = [
        f"the architecture is that of {same[0]}, but what the weights were pretrained on is not known"
        if same
        else f"other weights: {backbone.name} with {params}; the paper's models have "
        f"{min(each.params for each in columns)} M or more"
    ]
    if "probe" in recipes:
        reasons.append("the probe trains a linear layer on frozen features; the paper trains all weights")
    reasons += [f"the weights are for another image size; {change}" for change in backbone.changes]
    if set(recipes) != {"probe"}:
        reasons.append(f"at most {minutes:g} minutes per run")
    return tuple(reasons)


def row_reasons(task: PaperTask, result: DataResult | None, backbone: Backbone) -> tuple[str, ...]:
    """Why this row differs from the paper's."""
    if result is None:
        return (NOT_GIVEN,)
    pairs = (
        (result.num_classes, task.classes, "classes"),
        (result.num_train, task.train, "training images"),
        (result.num_test, task.test, "test images"),
        (min(backbone.image_size), task.side, "pixels a side"),
    )
    return tuple(f"{ours:,} {noun} instead of {theirs:,}" for ours, theirs, noun in pairs if ours != theirs)


def make_rows(results: Sequence[DataResult], backbone: Backbone, recipes: Sequence[str]) -> tuple[TransferRow, ...]:
    """The paper's rows with our results, then those that the paper does not have."""
    tables = paper_tables()
    found = {plain_name(each.name): each for each in results}
    rows = []
    for task in tables.tasks:
        result = next((found[name] for name in task.names if name in found), None)
        name, scores = (None, {}) if result is None else (result.name, result.scores)
        reasons = row_reasons(task, result, backbone)
        rows.append(TransferRow(task.group, task.title, name, scores, _fractions(task.scores), reasons))
    known = {name for task in tables.tasks for name in task.names}
    others = [each for each in results if plain_name(each.name) not in known]
    nothing = (None,) * len(tables.columns)
    return (
        *(row for row in rows if row.group == TABLE),
        _vtab_row([row for row in rows if row.group in VTAB], recipes),
        *(row for row in rows if row.group != TABLE),
        *(TransferRow(OTHER, each.name, each.name, each.scores, nothing, (NOT_IN_PAPER,)) for each in others),
    )


def _vtab_row(tasks: Sequence[TransferRow], recipes: Sequence[str]) -> TransferRow:
    """The row of VTAB in the paper's table, which needs all of its tasks."""
    given = [row for row in tasks if row.name is not None]
    title, paper = f"VTAB, {len(tasks)} tasks", _fractions(paper_tables().vtab)
    if len(given) < len(tasks):
        return TransferRow(TABLE, title, None, {}, paper, (f"{len(given)} of {len(tasks)} tasks given",))
    means = {recipe: mean_of([row.scores[recipe] for row in tasks]) for recipe in recipes}
    scores = {recipe: RecipeScore(value, interval, None, 0.0, ()) for recipe, (value, interval) in means.items()}
    return TransferRow(TABLE, title, title, scores, paper, ())


def make_means(
    results: Sequence[DataResult], rows: Sequence[TransferRow], recipes: Sequence[str]
) -> tuple[MeanRow, ...]:
    """The mean over all data sets, over each group of VTAB and over all of VTAB; none over a group without data."""
    columns, titles = range(len(paper_tables().columns)), paper_tables().groups
    means = [MeanRow("All data sets given", len(results), None, _mean_scores(results, recipes), (None,) * len(columns))]
    for title, groups in (*((titles[group], (group,)) for group in VTAB), ("VTAB, all groups", VTAB)):
        tasks = [row for row in rows if row.group in groups]
        given = [row for row in tasks if row.name is not None]
        if given:
            paper = tuple(_mean_or_none([row.paper[column] for row in given]) for column in columns)
            means.append(MeanRow(title, len(given), len(tasks), _mean_scores(given, recipes), paper))
    return tuple(means)


def _mean_scores(
    items: Sequence[DataResult | TransferRow], recipes: Sequence[str]
) -> dict[str, tuple[float, Interval]]:
    return {recipe: mean_of([each.scores[recipe] for each in items]) for recipe in recipes}


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if len(present) == len(values) else None


def _fractions(scores: Sequence[float]) -> tuple[float | None, ...]:
    """Scores in per cent as fractions, for all columns."""
    missing = len(paper_tables().columns) - len(scores)
    return (*(score / 100 for score in scores), *[None] * missing)
