"""From pictures to the best model that this machine can give within the time that the user has."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail import catalogue, matching, plug
from vitrail.data.check import scan_source
from vitrail.data.find import open_data
from vitrail.data.folds import fold_numbers, fold_tables, foldable
from vitrail.data.table import Source, Table
from vitrail.data.transform import Preprocess
from vitrail.errors import RunError, WeightsError, brief
from vitrail.report.run import OUT_OF_FOLD, REPORT, write_report
from vitrail.run import directory
from vitrail.run.predictions import PREDICTIONS, SUMMARY, PredictionRow, read_predictions, suspects, write_predictions
from vitrail.training import world as processes
from vitrail.training.clock import Timing
from vitrail.training.dry_run import Rates, few_of, forecast, one_step, try_rates
from vitrail.training.finish import finish_run
from vitrail.training.settings import LENGTHS, Common
from vitrail.training.splits import SCAN_SHARE, Splits, fingerprint, make_splits
from vitrail.training.task import Task
from vitrail.training.tensorboard import writer_class
from vitrail.training.view import Silent, View
from vitrail.training.world import World
from vitrail.weights.source import load_weights

RECIPES = "vitrail.training.recipe"
MINUTES = 10.0  # that a run takes if no length is told
MODEL_WORD = "model."
PARTS = "parts.json"


class Training(NamedTuple):
    """What a run came to: where it is, what was done, and the scores on pictures that it did not learn from."""

    run: Path
    recipe: str
    steps: int
    seconds: float
    val: dict[str, Any]
    test: dict[str, Any] | None
    story: tuple[str, ...]
    seconds_by_phase: dict[str, float] | None = None
    images_per_second: dict[str, float] | None = None
    """The forecast, and what was measured."""
    folds: dict[str, Any] | None = None
    """Of a run in folds: how often pictures were told right by models that had not seen them."""


@processes.together()
def train(
    data: str | Path | Source,
    *,
    model: str | None = None,
    weights: str | Path | None = None,
    recipe: str = "auto",
    minutes: float | None = None,
    run: str | Path | None = None,
    settings: Sequence[str] = (),
    seed: int = 0,
    folds: int | None = None,
    dry_run: bool = False,
    shard: bool = False,
    report: bool = True,
    data_dir: str | Path | None = None,
    command: str = "vitrail.train(...)",
    view: View | None = None,
) -> Training:
    """Train a classifier on data of any layout and keep it, with all that belongs to it, in the directory `run`.

    `settings` are words `key=value` for fields of the recipe, or of the model if they begin with `model.`. The same
    call again goes on with a run that was interrupted, and only tells the result of one that has ended. With `dry_run`
    a few pictures go through everything, nothing is kept, and the story is a forecast. With `folds` as many more models
    are trained, each without a part of the pictures, so that each picture is judged by one that has not seen it.
    Without `report` there is no page at the end, for runs that nobody will look at.
    """
    started = time.monotonic()
    world = processes.join()
    if shard:
        processes.check_shard()
    view = view if view is not None and world.is_rank_zero else Silent()
    asked = ask(data, model, weights, recipe, minutes, settings, seed, data_dir)
    divided = None if folds is None else foldable(asked.source, folds)
    if dry_run:
        return _dry_run(asked, view)
    path = Path(run) if run is not None else Path("runs") / f"{Path(asked.source.origin).stem or 'data'}-{recipe}"
    _check_place(path, asked.source)
    how = How(view, world, shard, command)
    if divided is None or folds is None:
        return _train(asked, path, how, started=started, report=report)
    asked = asked.shared_among(folds + 1)
    result = _train(asked, path, how, started=started, report=report)
    if world.on_rank_zero(lambda: not (path / SUMMARY).is_file()):
        raise RunError(f"{path} was trained by an earlier version.", got="no account of it.", hint="another --run.")
    return result._replace(folds=_train_folds(asked, divided, folds, path, how, report=report))


class How(NamedTuple):
    """What all runs of a call have in common."""

    view: View
    world: World
    shard: bool
    command: str


def _train(asked: Asked, path: Path, how: How, *, started: float, report: bool) -> Training:
    """One run: begun, gone on with, or, if it has ended, told."""
    view, world = how.view, how.world
    with directory.claim(path) if world.is_rank_zero else nullcontext():
        before = world.on_rank_zero(lambda: directory.stored_config(path))
        other = before is not None and before["request"] != asked.words
        if other and world.on_rank_zero(lambda: directory.discard_unstarted(path)):
            before = None  # asked for in other words, but nothing had come of it
        if before is not None:
            directory.check_same(path, before["request"], asked.words)
            result = world.on_rank_zero(lambda: directory.read_result(path))
            if result is not None:
                if report:
                    view.say("This run has ended before; here is its result. For another, give --run a new folder.")
                if report and world.is_rank_zero and (path / SUMMARY).is_file() and not (path / REPORT).is_file():
                    write_report(path, asked.source)
                return Training(**{**result, "run": path, "story": tuple(result["story"])})
        config = before or {"request": asked.words, "command": how.command}
        sets = _sets(asked, view, world, config.setdefault("decisions", {}))
        if world.is_rank_zero:
            directory.write_config(path, config)
        task = asked.task(path, sets, view, world, config=config, shard=how.shard, timing=Timing(started=started))
        try:
            outcome = plug.load(RECIPES, asked.recipe).train(task)
        except KeyboardInterrupt as stop:
            if str(stop):  # it says what was saved
                raise
            raise KeyboardInterrupt("Nothing was kept yet: the same command begins anew.") from None
        result = finish_run(task, asked.recipe, outcome)
        if report and world.is_rank_zero:  # last: a report can be made again, and must never cost a model
            view.say("Writing the report.")
            write_report(path, asked.source, model=outcome.model.eval())
        return Training(run=path, **result)


def _train_folds(asked: Asked, table: Table, folds: int, path: Path, how: How, *, report: bool) -> dict[str, Any]:
    """A run for each fold, without its pictures; then what they say to them, all together."""
    view, world = how.view, how.world
    numbers = world.on_rank_zero(lambda: _parts(asked, table, folds, path / "folds"))
    scores, rows, seconds = [], [], 0.0
    for number, part in enumerate(fold_tables(table, numbers, folds), 1):
        view.say(f"Fold {number} of {folds}.")
        place = path / "folds" / str(number)
        result = _train(asked.of(part), place, how, started=time.monotonic(), report=False)
        assert result.test is not None
        seconds += result.seconds
        scores.append(next(value for key, value in result.test.items() if key in {"top1", "map"}))
        rows += world.on_rank_zero(partial(_fold_rows, place, number))
    found = {
        "k": folds,
        "scores": scores,
        "mean": fmean(scores),
        "spread": stdev(scores),
        "n": len(rows),
        "suspects": len(suspects(rows)),
        "seconds": round(seconds, 2),
    }
    if world.is_rank_zero:
        write_predictions(path / OUT_OF_FOLD, rows)
        directory.write_json(path / directory.FOLDS, found)
        if report:
            write_report(path, asked.source)
    return found


def _parts(asked: Asked, table: Table, folds: int, place: Path) -> NDArray[np.int64]:
    """The fold of each picture, chosen once for a run: whether there is time to look for duplicates may change."""
    kept = place / PARTS
    if not kept.is_file():
        minutes = asked.settings.minutes
        seen = scan_source(table, seconds=None if minutes is None else minutes * 60 * SCAN_SHARE)
        numbers = fold_numbers(table, folds, seed=asked.settings.seed, scans=seen)
        place.mkdir(exist_ok=True)
        directory.write_json(kept, {"folds": folds, "data": fingerprint(table), "parts": numbers.tolist()})
    try:
        told = json.loads(kept.read_text(encoding="utf-8"))
        parts, same = np.array(told["parts"], dtype=np.int64), (told["folds"], told["data"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{kept} cannot be read.", got=brief(error), hint="another --run.") from None
    if same != (folds, fingerprint(table)):
        raise RunError(
            f"{place} holds other folds.", got=f"{told['folds']} folds then, {folds} now.", hint="another --run."
        )
    return parts


def _fold_rows(place: Path, number: int) -> list[PredictionRow]:
    """What a fold's model says to the pictures that it was trained without."""
    rows = read_predictions(place / PREDICTIONS)
    return [row._replace(split=f"fold {number}") for row in rows if row.split == "test"]


class Asked(NamedTuple):
    """A request that has been understood: everything that can be wrong with its words has been told."""

    source: Source
    settings: Common
    recipe: str
    new_model: Callable[..., Any]
    has_weights: bool
    free: bool
    words: dict[str, Any]

    def shared_among(self, num: int) -> Asked:
        """The same request with a part of the minutes, where there are any."""
        if self.settings.minutes is None:
            return self
        return self._replace(settings=self.settings.override({"minutes": self.settings.minutes / num}))

    def of(self, source: Source) -> Asked:
        """The same request of other pictures."""
        return self._replace(source=source, words={**self.words, "data_fingerprint": fingerprint(source)})

    def task(self, path: Path, sets: Splits, view: View, world: World, **fields: Any) -> Task:
        """The run as its recipe meets it."""
        return Task(
            run=path,
            sets=sets,
            settings=self.settings,
            new_model=self.new_model,
            has_weights=self.has_weights,
            free=self.free,
            view=view,
            world=world,
            **fields,
        )


def ask(
    data: str | Path | Source,
    model: str | None,
    weights: str | Path | None,
    recipe: str,
    minutes: float | None,
    settings: Sequence[str],
    seed: int,
    data_dir: str | Path | None,
) -> Asked:
    """Understand a request, or say what is wrong with it."""
    chosen = parse_settings(recipe, settings, minutes=minutes, seed=seed, has_weights=weights is not None)
    source = data if isinstance(data, Source) else open_data(data, data_dir=data_dir)
    if weights is None and getattr(plug.load(RECIPES, recipe), "NEEDS_WEIGHTS", False):
        raise WeightsError(
            f"the recipe {recipe} needs pretrained weights: it only reads what a model has learned before.",
            got="no --weights.",
            hint="--weights FILE, or --recipe scratch.",
        )
    model_words = [word.removeprefix(MODEL_WORD) for word in settings if word.startswith(MODEL_WORD)]
    new_model = model_maker(source, model, weights, model_words, chosen.seed)
    new_model(num_classes=max(2, len(source.classes)))  # what is wrong with the model is told before anything is begun
    words = {
        "data": source.origin if isinstance(data, Source) else str(data),
        "model": model,
        "weights": None if weights is None else str(weights),
        "recipe": recipe,
        "settings": chosen.model_dump(mode="json"),
        "model_settings": model_words,
        "data_fingerprint": fingerprint(source),
    }
    free = model is None and not model_words
    return Asked(source, chosen, recipe, new_model, weights is not None, free, words)


def find_lr(
    data: str | Path,
    *,
    model: str | None = None,
    weights: str | Path | None = None,
    recipe: str = "auto",
    settings: Sequence[str] = (),
    seed: int = 0,
    data_dir: str | Path | None = None,
    view: View | None = None,
) -> Rates:
    """Try ever higher learning rates on a few batches, and tell which suits; nothing is kept."""
    asked = ask(data, model, weights, recipe, None, settings, seed, data_dir)
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        task = asked.task(Path(folder), _sets(asked, view or Silent(), World()), view or Silent(), World())
        return try_rates(task)


def _dry_run(asked: Asked, view: View) -> Training:
    """A few pictures of each class through everything, in a directory that is thrown away."""
    started = time.monotonic()
    sets = _sets(asked, view, World())
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        small = asked._replace(settings=one_step(asked.settings))
        task = small.task(Path(folder), few_of(sets), Silent(), World(), timing=Timing(started=started))
        ended = finish_run(task, asked.recipe, plug.load(RECIPES, asked.recipe).train(task))
        return Training(run=Path("(nothing kept)"), **{**ended, "story": forecast(task, asked.settings, sets)})


def parse_settings(recipe: str, words: Sequence[str], *, minutes: float | None, seed: int, has_weights: bool) -> Common:
    """The recipe's settings, with `key=value` words applied; without a length, ten minutes."""
    module = plug.load(RECIPES, recipe)
    spec = module.spec(has_weights=has_weights) if hasattr(module, "spec") else module.Spec
    own = [word for word in words if not word.startswith(MODEL_WORD)]
    settings: Common = spec().override_words(own)
    told: dict[str, Any] = {"seed": seed} if seed else {}
    if minutes is not None:
        told["minutes"] = minutes
    settings = settings.override(told)
    if all(getattr(settings, name, None) is None for name in LENGTHS):
        settings = settings.override({"minutes": MINUTES})
    if getattr(settings, "tensorboard", False):
        writer_class()
    return settings


def model_maker(
    source: Source, model: str | None, weights: str | Path | None, words: Sequence[str], seed: int
) -> Callable[..., Any]:
    """How to make the model, by the shapes of the weights where no name is told."""
    if model is None and weights is not None:
        model = matching.only_name(str(weights), load_weights(weights), hint="--model {name}, if it is that one.")
    elif model is None:
        model = plug.load(RECIPES, "scratch").suggest(source)
    asked_for = str(model)
    spec = catalogue.spec_named(asked_for).override_words(words)
    fields = {key: getattr(spec, key) for key in (word.partition("=")[0].partition(".")[0] for word in words)}

    def new_model(*, name: str = asked_for, **more: Any) -> Any:
        torch.manual_seed(seed)
        made = catalogue.create_model(name, weights=weights, **{**fields, **more})
        made.preprocess = made.preprocess or Preprocess(size=made.spec.image_size)
        return made

    return new_model


def _sets(asked: Asked, view: View, world: World, chosen: dict[str, Any] | None = None) -> Splits:
    """The pictures; a recipe that validates by itself learns from all that are not for judging."""
    recipe = plug.load(RECIPES, asked.recipe)
    own, check = (getattr(recipe, name, False) for name in ("OWN_VALIDATION", "CHECKS"))
    return make_splits(asked.source, asked.settings, view, world, hold=not own, check=check, chosen=chosen)


def _check_place(path: Path, source: Source) -> None:
    if source.root is not None and source.root.is_dir() and path.resolve().is_relative_to(source.root.resolve()):
        raise RunError(
            "the run would lie inside the data, which is never written to.", got=f"{path}.", hint="another --run."
        )
