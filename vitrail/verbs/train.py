"""Train the best classifier possible in the time that the user has."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from vitrail import plug
from vitrail.data.check import scan_source
from vitrail.data.folds import fold_numbers, fold_tables, foldable
from vitrail.data.table import Source, Table
from vitrail.errors import DataError, RunError
from vitrail.report.run import OUT_OF_FOLD, REPORT
from vitrail.request import RECIPES, TrainRequest, make_splits, parse_request
from vitrail.run import directory
from vitrail.run.predictions import PREDICTIONS, SUMMARY, PredictionRow, read_predictions, suspects, write_predictions
from vitrail.run.schema import FOLD_NUMBERS_FILE
from vitrail.training import world as processes
from vitrail.training.clock import Timing
from vitrail.training.dry_run import LrSearch, forecast, limit_to_one_step, sample_source, sample_splits, search_lr
from vitrail.training.recipe.image.splits import SCAN_FRACTION
from vitrail.training.splits import fingerprint
from vitrail.training.view import SilentView, View
from vitrail.training.world import World

FOLD_NUMBERS = "parts.json"


class Training(NamedTuple):
    """The result of a run: its directory, what was done, and the scores on held-out images."""

    run: Path
    recipe: str
    steps: int
    seconds: float
    val: dict[str, Any]
    test: dict[str, Any] | None
    story: tuple[str, ...]
    seconds_by_phase: dict[str, float] | None = None
    images_per_second: dict[str, float] | None = None
    """`forecast` and `measured`."""
    samples_per_second: dict[str, float] | None = None
    """The same, of a run on something else than images."""
    folds: dict[str, Any] | None = None
    """With `folds`: the out-of-fold scores."""


@processes.fail_together()
def train(
    data: str | Path | Source,
    *,
    model: str | None = None,
    weights: str | Path | None = None,
    recipe: str = "auto",
    teacher: str | Path | nn.Module | None = None,
    unlabelled: str | Path | Source | None = None,
    minutes: float | None = None,
    run: str | Path | None = None,
    settings: Sequence[str] = (),
    seed: int = 0,
    target: str | None = None,
    folds: int | None = None,
    dry_run: bool = False,
    shard: bool = False,
    report: bool = True,
    data_dir: str | Path | None = None,
    command: str = "vitrail.train(...)",
    started: float | None = None,
    view: View | None = None,
) -> Training:
    """Train a model on data of any layout and save it in the run directory `run`.

    It is a classifier unless there is a `target`: then it predicts a number, that of the column `target` of a table, or
    the one that each class is named by.

    `teacher`, for the recipe distill, is a run, an exported model, a weight file, or a model of Vitrail or timm.
    `unlabelled`, for auto and noisy_student, is more data, whose labels are not read.

    `settings` are `key=value` overrides for the recipe, or for the model if they start with `model.`. The same call
    resumes an interrupted run, and returns the result of a finished one. With `dry_run`, a few images go through
    everything, nothing is saved, and `story` is a forecast. `folds` trains that many more models, each without one
    fold, so that each image is predicted by a model that has not seen it. `report=False` skips the HTML report. The
    minutes count from `started`, a time.monotonic(), or from the call.
    """
    started = time.monotonic() if started is None else started
    world = processes.init_world()
    if shard:
        processes.check_can_shard()
    view = view if view is not None and world.is_rank_zero else SilentView()
    request = parse_request(
        data, model, weights, recipe, minutes, settings, seed, data_dir, target, teacher=teacher, unlabelled=unlabelled
    )
    is_labelled = bool(request.source.classes) and len(request.source.modalities) == 1
    if folds is not None and (request.source.values is not None or not is_labelled):
        raise DataError("folds are for classification.", got="--folds for another task.", hint="no --folds.")
    fold_table = None if folds is None else foldable(request.source, folds)
    if dry_run:
        return _dry_run(request, view)
    path = Path(run) if run is not None else Path("runs") / f"{Path(request.source.origin).stem or 'data'}-{recipe}"
    _check_run_path(path, request.source)
    context = RunContext(view, world, shard, command)
    if fold_table is None or folds is None:
        return _train(request, path, context, started=started, report=report)
    request = request.divide_minutes(folds + 1)
    result = _train(request, path, context, started=started, report=report)
    if world.on_rank_zero(lambda: not (path / SUMMARY).is_file()):
        raise RunError(f"{path} was trained by an earlier version.", got=f"no {SUMMARY}.", hint="another --run.")
    return result._replace(folds=_train_folds(request, fold_table, folds, path, context, report=report))


class RunContext(NamedTuple):
    """What all runs of one call share."""

    view: View
    world: World
    shard: bool
    command: str


def _train(request: TrainRequest, path: Path, context: RunContext, *, started: float, report: bool) -> Training:
    """Start or resume a run, or return the result if it has finished."""
    view, world = context.view, context.world
    with directory.claim(path) if world.is_rank_zero else nullcontext():
        stored = world.on_rank_zero(lambda: directory.stored_config(path))
        differs = stored is not None and stored["request"] != request.fields
        if differs and world.on_rank_zero(lambda: directory.discard_unstarted(path)):
            stored = None  # another request, but it never started training
        if stored is not None:
            defaults = type(request.settings)().model_dump(mode="json")
            directory.check_same(path, stored["request"], request.fields, defaults=defaults)
            result = world.on_rank_zero(lambda: directory.read_result(path))
            if result is not None:
                if report:
                    view.say("This run has already finished; here is its result. For a new run, choose another --run.")
                if report and world.is_rank_zero and (path / SUMMARY).is_file() and not (path / REPORT).is_file():
                    request.kind.write_report(path, request.source)
                return Training(**{**result, "run": path, "story": tuple(result["story"])})
        config = stored or {"request": request.fields, "command": context.command}
        splits = make_splits(request, view, world, config.setdefault("decisions", {}), path)
        if world.is_rank_zero:
            directory.write_config(path, config)
        timing = Timing(started=started)
        task = request.make_task(path, splits, view, world, config=config, shard=context.shard, timing=timing)
        try:
            outcome = plug.load(RECIPES, request.recipe).train(task)
        except KeyboardInterrupt as stop:
            if str(stop):  # the message says what was saved
                raise
            raise KeyboardInterrupt("Nothing was saved yet; the same command starts again.") from None
        result = request.kind.finish(task, request.recipe, outcome)
        if report and world.is_rank_zero:  # last: it can be written again, and must never cost a model
            view.say("Writing the report.")
            request.kind.write_report(path, request.source, model=outcome.model.eval())
        return Training(run=path, **result)


def _train_folds(
    request: TrainRequest, table: Table, folds: int, path: Path, context: RunContext, *, report: bool
) -> dict[str, Any]:
    """Train one run per fold, without its images, and collect their predictions for them."""
    view, world = context.view, context.world
    numbers = world.on_rank_zero(lambda: _assign_folds(request, table, folds, path / "folds"))
    scores, rows, seconds = [], [], 0.0
    for number, part in enumerate(fold_tables(table, numbers, folds), 1):
        view.say(f"Fold {number} of {folds}.")
        fold_path = path / "folds" / str(number)
        result = _train(request.with_source(part), fold_path, context, started=time.monotonic(), report=False)
        assert result.test is not None
        seconds += result.seconds
        scores.append(next(value for key, value in result.test.items() if key in {"top1", "map"}))
        rows += world.on_rank_zero(partial(_fold_rows, fold_path, number))
    summary = {
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
        directory.write_json(path / directory.FOLDS, summary)
        if report:
            request.kind.write_report(path, request.source)
    return summary


def _assign_folds(request: TrainRequest, table: Table, folds: int, folder: Path) -> NDArray[np.int64]:
    """Assign images to folds once per run: whether there is time to search for duplicates may change later."""
    file = folder / FOLD_NUMBERS
    if not file.is_file():
        minutes = request.settings.minutes
        scans = scan_source(table, seconds=None if minutes is None else minutes * 60 * SCAN_FRACTION)
        numbers = fold_numbers(table, folds, seed=request.settings.seed, scans=scans)
        folder.mkdir(exist_ok=True)
        document = {"folds": folds, "data": fingerprint(table), "parts": numbers.tolist()}
        directory.write_summed(file, document)
    try:
        stored = directory.read_document(file, FOLD_NUMBERS_FILE)
        numbers, origin = np.array(stored["parts"], dtype=np.int64), (stored["folds"], stored["data"])
    except OSError as error:
        raise directory.invalid(file, error) from None
    if origin != (folds, fingerprint(table)):
        raise RunError(
            f"{folder} holds other folds.", got=f"{stored['folds']} folds then, {folds} now.", hint="another --run."
        )
    if len(numbers) != len(table) or int(numbers.max()) >= folds:
        raise directory.invalid(file, ValueError(f"parts: {len(numbers):,} numbers for {len(table):,} images"))
    return numbers


def _fold_rows(fold_path: Path, number: int) -> list[PredictionRow]:
    """The predictions of a fold's model for the images of that fold."""
    rows = read_predictions(fold_path / PREDICTIONS)
    return [row._replace(split=f"fold {number}") for row in rows if row.split == "test"]


def find_lr(
    data: str | Path,
    *,
    model: str | None = None,
    weights: str | Path | None = None,
    recipe: str = "auto",
    teacher: str | Path | nn.Module | None = None,
    unlabelled: str | Path | Source | None = None,
    settings: Sequence[str] = (),
    seed: int = 0,
    target: str | None = None,
    data_dir: str | Path | None = None,
    view: View | None = None,
) -> LrSearch:
    """Find a learning rate by raising it over a few batches; nothing is saved."""
    request = parse_request(
        data, model, weights, recipe, None, settings, seed, data_dir, target, teacher=teacher, unlabelled=unlabelled
    )
    view = view or SilentView()
    new_objective = getattr(plug.load(RECIPES, recipe), "new_objective", request.kind.new_objective)
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        world = processes.init_world()
        task = request.make_task(Path(folder), make_splits(request, view, world), view, world)
        return search_lr(task, new_objective)


def _dry_run(request: TrainRequest, view: View) -> Training:
    """Run everything on a few images per class, in a temporary directory."""
    started, world = time.monotonic(), processes.init_world()
    splits = make_splits(request, view, world)
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        unlabelled = None if request.unlabelled is None else sample_source(request.unlabelled)
        small = request._replace(settings=limit_to_one_step(request.settings), unlabelled=unlabelled)
        task = small.make_task(Path(folder), sample_splits(splits), SilentView(), world, timing=Timing(started=started))
        result = request.kind.finish(task, request.recipe, plug.load(RECIPES, request.recipe).train(task))
        return Training(run=Path("(nothing saved)"), **{**result, "story": forecast(task, request.settings, splits)})


def _check_run_path(path: Path, source: Source) -> None:
    if source.root is not None and source.root.is_dir() and path.resolve().is_relative_to(source.root.resolve()):
        raise RunError(
            "the run would be inside the data, which is never written to.", got=f"{path}.", hint="another --run."
        )
