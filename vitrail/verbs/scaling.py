"""How good would the classifier be with twice the images?"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.check import scan_source
from vitrail.data.find import open_data
from vitrail.data.held_out import hold_out
from vitrail.data.rng import make_rng
from vitrail.data.table import SPLITS, Source, Table
from vitrail.errors import DataError, RunError, SpecError
from vitrail.files import write_text
from vitrail.metric.scaling import MIN_LADDER, Scaling, describe_scaling, ladder_sizes, nested_order
from vitrail.report.scaling import render_scaling
from vitrail.request import DEFAULT_MINUTES, parse_request
from vitrail.training import world as processes
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.features import Features
from vitrail.training.recipe.image.ladder import probe_ladder
from vitrail.training.recipe.probe import compute_views
from vitrail.training.settings import LENGTHS
from vitrail.training.splits import Splits
from vitrail.training.view import SilentView, View
from vitrail.verbs.train import train

RECIPES = ("probe", "finetune", "scratch")
HELD_OUT = 0.1  # of the images, if the data has neither a test nor a validation split
TRAIN, VAL, TEST = range(len(SPLITS))


def scaling(
    data: str | Path | Source,
    *,
    recipe: str | None = None,
    model: str | None = None,
    weights: str | Path | None = None,
    minutes: float | None = None,
    seeds: int = 3,
    settings: Sequence[str] = (),
    out: str | Path | None = None,
    run: str | Path | None = None,
    data_dir: str | Path | None = None,
    view: View | None = None,
) -> Scaling:
    """Train on a ladder of nested, stratified subsets, fit a law to the test errors, and forecast twice the images.

    With the recipe probe, the default with weights, the features are computed once. With `scratch` and `finetune`,
    each subset and seed is an ordinary run in `run`/SIZE-SEED, all of the same length: that of `settings`, or their
    share of the `minutes`. The same call resumes, and finished runs are not repeated. `out` is an HTML page.
    """
    view = view or SilentView()
    recipe = recipe or ("scratch" if weights is None else "probe")
    _check_request(recipe, model, weights, seeds)
    table = _make_splits(_open_table(data, data_dir), view)
    ladder = _Ladder(table, seeds)
    if recipe == "probe":
        accuracies = _probe(table, model, weights, settings, seeds, view)
    else:
        folder = Path(run) if run is not None else Path("runs") / f"{Path(table.origin).stem or 'data'}-scaling"
        options = {"model": model, "weights": weights, "recipe": recipe, "settings": settings}
        accuracies = _train(ladder, folder, options, minutes, view)
    result = describe_scaling(accuracies, len(table.split("test")))
    if out is not None:
        write_text(render_scaling(result, title=table.origin, recipe=recipe), Path(out), RunError)
    return result


def _check_request(recipe: str, model: str | None, weights: str | Path | None, seeds: int) -> None:
    if recipe not in RECIPES:
        raise SpecError(
            "a ladder of subsets is for recipes that classify images.",
            got=f"--recipe {recipe}.",
            hint=f"{', '.join(RECIPES[:-1])} or {RECIPES[-1]}.",
        )
    if seeds < 1:
        raise SpecError("at least one seed is needed.", got=f"--seeds {seeds}.", hint="--seeds 3.")
    if model is None and weights is None and recipe == "scratch":
        raise SpecError(
            "every size must train the same model, so it has to be named.",
            got="neither --model nor --weights.",
            hint="--weights for a quick answer, or --model with a name from vitrail models.",
        )


def _open_table(data: str | Path | Source, data_dir: str | Path | None) -> Table:
    """The data, if it has one label per image and random access."""
    source = data if isinstance(data, Source) else open_data(data, data_dir=data_dir)
    if source.kind != "classification" or source.multi_label or not isinstance(source, Table):
        what = "shards" if not isinstance(source, Table) else "multi-label data" if source.multi_label else source.kind
        raise DataError(
            "a ladder of subsets needs images with one label each, and random access.",
            got=f"{source.origin}: {what}.",
            hint="a folder, zip or table of labelled images.",
        )
    return source


def _make_splits(table: Table, view: View) -> Table:
    """The data with a split for testing: its own, its validation split, or else a held-out part."""
    splits = table.splits.copy()
    if "test" not in table.split_names:
        if "val" in table.split_names:
            splits[splits == VAL] = TEST
        else:
            scans = scan_source(table, progress=lambda done, num: view.progress("Searching for duplicates", done, num))
            splits[:] = TRAIN
            splits[hold_out(table, fraction=HELD_OUT, seed=0, scans=scans).val] = TEST
    return replace(table, splits=splits)


class _Ladder:
    """Subsets of the training images, nested for each seed."""

    def __init__(self, table: Table, seeds: int) -> None:
        self.table, self.rows = table, np.flatnonzero(table.splits == TRAIN)
        labels = table.labels[self.rows].astype(np.int64)
        num_classes = len(np.unique(labels))
        self.sizes = ladder_sizes(len(labels), num_classes)
        if num_classes < 2 or len(self.sizes) < MIN_LADDER:
            raise DataError(
                "there are too few images for a ladder of subsets.",
                got=f"{len(labels):,} training images of {num_classes:,} classes.",
                hint="at least two classes, and eight images of each.",
            )
        self.orders = [nested_order(labels, make_rng("order", seed=seed, epoch=3)) for seed in range(seeds)]
        self.steps = [(size, seed) for size in self.sizes for seed in range(seeds)]

    def subset(self, size: int, seed: int) -> Table:
        """The data with only some of its training images."""
        others = np.flatnonzero(self.table.splits != TRAIN)
        return self.table.only(np.sort(np.concatenate([self.rows[self.orders[seed][:size]], others])))


def _probe(
    table: Table,
    model: str | None,
    weights: str | Path | None,
    settings: Sequence[str],
    seeds: int,
    view: View,
) -> dict[int, list[float]]:
    """Compute all features once, then fit a linear model on every subset."""
    request = parse_request(table, model, weights, "probe", None, settings, 0, None)
    train_split, test_split = table.split("train"), table.split("test")
    request.kind.check_source(train_split)
    splits = Splits(train_split, train_split, test_split, "")
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        task = request.make_task(Path(folder), splits, view, processes.init_world())
        headless = as_classifier(task.new_model(num_classes=0)).eval().to(task.world.device)
        views = compute_views(task, headless, train_split)
        test = task.infer(headless, test_split, "Test features", Features())
    return probe_ladder(
        views.features,
        views.labels,
        (test["features"], test["label"]),
        seeds=seeds,
        progress=lambda done, num: view.progress("Subsets", done, num),
    )


def _train(
    ladder: _Ladder, folder: Path, options: dict[str, Any], minutes: float | None, view: View
) -> dict[int, list[float]]:
    """Train or resume a run for each subset and seed, all of the same length."""
    num, accuracies = len(ladder.steps), {size: list[float]() for size in ladder.sizes}
    if not any(word.partition("=")[0] in LENGTHS for word in options["settings"]):
        options["minutes"] = (DEFAULT_MINUTES if minutes is None else minutes) / num
    for number, (size, seed) in enumerate(ladder.steps, 1):
        view.say(f"Run {number} of {num}: {size:,} images, seed {seed}.")
        path = folder / f"{size}-{seed}"
        result = train(ladder.subset(size, seed), run=path, seed=seed, report=False, view=view, **options)
        assert result.test is not None
        accuracies[size].append(result.test["top1"])
    return accuracies
