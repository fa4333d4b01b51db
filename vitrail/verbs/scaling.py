"""How good would the classifier be with twice the images, or twice the time, or as a larger model?"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.catalogue import build, on_meta, spec_named
from vitrail.data.check import scan_source
from vitrail.data.find import open_data
from vitrail.data.held_out import hold_out
from vitrail.data.rng import make_rng
from vitrail.data.table import SPLITS, Source, Table
from vitrail.errors import DataError, RunError, SpecError
from vitrail.files import write_text
from vitrail.metric.scaling import (
    MIN_LADDER,
    Scaling,
    compare_ladders,
    describe_scaling,
    ladder_sizes,
    nested_order,
)
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
NUM_HALVINGS = 5  # of the length of a run, in the ladder of times


class Ladders(NamedTuple):
    """What more images would bring and, if asked, more time and larger models."""

    images: Scaling
    times: Scaling | None = None
    models: Scaling | None = None

    @property
    def comparison(self) -> str:
        """Whether labels or time are worth more, in words; nothing without a ladder of times."""
        return "" if self.times is None else compare_ladders(self.images, self.times)

    @property
    def verdict(self) -> str:
        """The answer in words."""
        return (
            self.images.verdict
            if self.times is None
            else f"{self.images.verdict} {self.times.verdict} {self.comparison}"
        )

    def document(self) -> dict[str, Any]:
        """The same as plain values, for JSON: that of the images, with the other ladders inside."""
        others = {"times": self.times, "models": self.models}
        found = {name: each.document() for name, each in others.items() if each is not None}
        return {**self.images.document(), **found, "verdict": self.verdict}


def scaling(
    data: str | Path | Source,
    *,
    recipe: str | None = None,
    model: str | None = None,
    weights: str | Path | None = None,
    minutes: float | None = None,
    seeds: int = 3,
    times: bool = False,
    models: Sequence[str] = (),
    settings: Sequence[str] = (),
    out: str | Path | None = None,
    run: str | Path | None = None,
    data_dir: str | Path | None = None,
    view: View | None = None,
) -> Ladders:
    """Train on a ladder of nested, stratified subsets, fit a law to the test errors, and forecast twice the images.

    With the recipe probe, the default with weights, the features are computed once. With `scratch` and `finetune`,
    each subset and seed is an ordinary run in `run`/SIZE-SEED, all of the same length: that of `settings`, or their
    share of the `minutes`. `times` adds shorter runs on all images, down to 1/32, and a forecast for twice the time;
    `models` adds other models of the catalogue, on all images and for the same time, and a law of their FLOPs. The same
    call resumes, and finished runs are not repeated. `out` is an HTML page.
    """
    view = view or SilentView()
    recipe = recipe or ("scratch" if weights is None else "probe")
    _check_request(recipe, model, weights, seeds)
    _check_ladders(recipe, model, weights, times=times, models=models)
    table = _make_splits(_open_table(data, data_dir), view)
    ladder, num_test = _Ladder(table, seeds), len(table.split("test"))
    if recipe == "probe":
        result = Ladders(describe_scaling(_probe(table, model, weights, settings, seeds, view), num_test))
    else:
        folder = Path(run) if run is not None else Path("runs") / f"{Path(table.origin).stem or 'data'}-scaling"
        runs = _Runs(ladder, folder, recipe, model, weights, settings, view)
        num = len(ladder.steps) + seeds * len(models) + times * seeds * (1 - 0.5**NUM_HALVINGS)
        result = runs.measure((DEFAULT_MINUTES if minutes is None else minutes) / num, times=times, models=models)
    if out is not None:
        ladders = [each for each in result if each is not None]
        write_text(
            render_scaling(ladders, comparison=result.comparison, title=table.origin, recipe=recipe),
            Path(out),
            RunError,
        )
    return result


def _check_ladders(
    recipe: str, model: str | None, weights: str | Path | None, *, times: bool, models: Sequence[str]
) -> None:
    """Refuse ladders that cannot be measured, and models that do not exist, before anything is trained."""
    if recipe == "probe" and (times or models):
        raise SpecError(
            "a probe is fitted until it ends, on the features of one model.",
            got="--times or --models with the recipe probe.",
            hint="--recipe scratch or --recipe finetune.",
        )
    if models and weights is not None:
        raise SpecError(
            "weights are those of one model.", got="--weights and --models.", hint="--recipe scratch without --weights."
        )
    for name in models:
        spec_named(name)
    if len({*models, model}) < len(models) + 1:
        raise SpecError("the models must differ.", got=", ".join([str(model), *models]) + ".", hint="each once.")


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


class _Runs:
    """Ordinary runs, each of which resumes: the points of all ladders."""

    def __init__(
        self,
        ladder: _Ladder,
        folder: Path,
        recipe: str,
        model: str | None,
        weights: str | Path | None,
        settings: Sequence[str],
        view: View,
    ) -> None:
        self.ladder, self.folder, self.recipe, self.model = ladder, folder, recipe, model
        self.weights, self.settings, self.view = weights, settings, view
        self.num_test, self.num_all = len(ladder.table.split("test")), ladder.sizes[-1]

    def measure(self, minutes: float, *, times: bool, models: Sequence[str]) -> Ladders:
        """Train everything that is missing; without a length in the settings, a run has so many minutes."""
        accuracies = {size: list[float]() for size in self.ladder.sizes}
        for number, (size, seed) in enumerate(self.ladder.steps, 1):
            self.view.say(f"Run {number} of {len(self.ladder.steps)}: {size:,} images, seed {seed}.")
            accuracies[size].append(self._train(f"{size}-{seed}", size, seed, minutes)[0])
        images = describe_scaling(accuracies, self.num_test)
        return Ladders(
            images,
            self._measure_times(minutes) if times else None,
            self._measure_models(models, minutes, accuracies[self.num_all]) if models else None,
        )

    def _measure_times(self, minutes: float) -> Scaling:
        """All images for a half, a quarter, ... of the time; the whole time is the last point of the images."""
        what, value = self._length() or ("minutes", minutes)
        accuracies: dict[int, list[float]] = {}
        for halvings in range(NUM_HALVINGS, -1, -1):
            if what == "steps" and value < 2**halvings:  # less than a step
                continue
            size = round(60 * value / 2**halvings) if what == "minutes" else 0
            for seed in range(len(self.ladder.orders)):
                self.view.say(f"All images, 1/{2**halvings} of the time, seed {seed}.")
                name = f"1of{2**halvings}-{seed}" if halvings else f"{self.num_all}-{seed}"
                accuracy, steps = self._train(name, self.num_all, seed, minutes, halvings=halvings)
                size = size or steps
                accuracies.setdefault(size, []).append(accuracy)
        return describe_scaling(accuracies, self.num_test, unit="seconds" if what == "minutes" else "steps")

    def _measure_models(self, models: Sequence[str], minutes: float, own: list[float]) -> Scaling:
        """All images and the same time for every model."""
        assert self.model is not None
        names = {self._flops(name): name for name in (*models, self.model)}
        accuracies = {self._flops(self.model): own}
        for name in models:
            for seed in range(len(self.ladder.orders)):
                self.view.say(f"All images, {name}, seed {seed}.")
                accuracy, _ = self._train(f"{name}-{seed}", self.num_all, seed, minutes, model=name)
                accuracies.setdefault(self._flops(name), []).append(accuracy)
        return describe_scaling(accuracies, self.num_test, unit="FLOPs", names=names)

    def _flops(self, name: str) -> int:
        with on_meta():
            return build(spec_named(name).override({"num_classes": len(self.ladder.table.classes)})).flops()

    def _length(self) -> tuple[str, float] | None:
        """The setting that says how long a run is, and its value."""
        for word in self.settings:
            name, _, value = word.partition("=")
            if name in LENGTHS:
                return name, float(value)
        return None

    def _train(
        self, name: str, size: int, seed: int, minutes: float, *, model: str | None = None, halvings: int = 0
    ) -> tuple[float, int]:
        """Train or resume one run; return its test accuracy and its steps."""
        settings, length = list(self.settings), self._length()
        if length is not None and halvings:
            what, value = length[0], length[1] / 2**halvings
            settings = [word for word in settings if word.partition("=")[0] != what]
            settings.append(f"{what}={max(1, round(value)) if what == 'steps' else value}")
        result = train(
            self.ladder.subset(size, seed),
            model=model or self.model,
            weights=self.weights,
            recipe=self.recipe,
            minutes=None if length is not None else minutes / 2**halvings,
            run=self.folder / name,
            settings=settings,
            seed=seed,
            report=False,
            view=self.view,
        )
        assert result.test is not None
        return result.test["top1"], result.steps
