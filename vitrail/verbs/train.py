"""From pictures to the best model that this machine can give within the time that the user has."""

from __future__ import annotations

import logging
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitrail import catalogue, matching, plug
from vitrail.data.find import open_data
from vitrail.data.loader import num_cores
from vitrail.data.reader import Reader
from vitrail.data.table import Source
from vitrail.data.transform import Preprocess
from vitrail.errors import RunError
from vitrail.run import directory
from vitrail.run.artefact import write_artefact
from vitrail.training import world as processes
from vitrail.training.events import writer_class
from vitrail.training.judge import score_of
from vitrail.training.sets import Sets, fingerprint, make_sets
from vitrail.training.settings import LENGTHS, Common
from vitrail.training.task import Outcome, Task
from vitrail.training.trial import Rates, few_of, forecast, one_step, try_rates
from vitrail.training.view import Silent, View
from vitrail.training.world import World
from vitrail.weights.source import load_weights

RECIPES = "vitrail.training.recipe"
MINUTES = 10.0  # that a run takes if no length is told
NUM_GOLDEN = 8
MODEL_WORD = "model."
logger = logging.getLogger("vitrail")


class Training(NamedTuple):
    """What a run came to: where it is, what was done, and the scores on pictures that it did not learn from."""

    run: Path
    recipe: str
    steps: int
    seconds: float
    val: dict[str, Any]
    test: dict[str, Any] | None
    story: tuple[str, ...]


@processes.together()
def train(
    data: str | Path,
    *,
    model: str | None = None,
    weights: str | Path | None = None,
    recipe: str = "auto",
    minutes: float | None = None,
    run: str | Path | None = None,
    settings: Sequence[str] = (),
    seed: int = 0,
    dry_run: bool = False,
    shard: bool = False,
    data_dir: str | Path | None = None,
    command: str = "vitrail.train(...)",
    view: View | None = None,
) -> Training:
    """Train a classifier on data of any layout and keep it, with all that belongs to it, in the directory `run`.

    `settings` are words `key=value` for fields of the recipe, or of the model if they begin with `model.`. The same
    call again goes on with a run that was interrupted, and only tells the result of one that has ended. With `dry_run`
    a few pictures go through everything, nothing is kept, and the story is a forecast.
    """
    started = time.monotonic()
    world = processes.join()
    if shard:
        processes.check_shard()
    view = view if view is not None and world.leads else Silent()
    asked = ask(data, model, weights, recipe, minutes, settings, seed, data_dir)
    if dry_run:
        return _dry_run(asked, view)
    path = Path(run) if run is not None else Path("runs") / f"{Path(str(data)).stem or 'data'}-{recipe}"
    _check_place(path, asked.source)
    with directory.claim(path) if world.leads else nullcontext():
        before = world.lead(lambda: directory.stored_config(path))
        if before is not None:
            directory.check_same(path, before["asked"], asked.words)
            result = world.lead(lambda: directory.read_result(path))
            if result is not None:
                view.say("This run has ended before; here is its result. For another, give --run a new folder.")
                return Training(**{**result, "run": path, "story": tuple(result["story"])})
        config = before or {"asked": asked.words, "command": command}
        sets = _sets(asked, view, world, config.setdefault("chosen", {}))
        if world.leads:
            directory.write_config(path, config)
        task = asked.task(path, sets, view, world, config=config, shard=shard, started=started)
        return _finish(task, asked, plug.load(RECIPES, recipe).train(task))


class Asked(NamedTuple):
    """A request that has been understood: everything that can be wrong with its words has been told."""

    source: Source
    settings: Common
    recipe: str
    new_model: Callable[..., Any]
    has_weights: bool
    free: bool
    words: dict[str, Any]

    def task(self, path: Path, sets: Sets, view: View, world: World, **fields: Any) -> Task:
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
    data: str | Path,
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
    source = open_data(data, data_dir=data_dir)
    model_words = [word.removeprefix(MODEL_WORD) for word in settings if word.startswith(MODEL_WORD)]
    new_model = model_maker(source, model, weights, model_words, chosen.seed)
    new_model(num_classes=max(2, len(source.classes)))  # what is wrong with the model is told before anything is begun
    words = {
        "data": str(data),
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
        task = small.task(Path(folder), few_of(sets), Silent(), World(), started=started)
        result = _finish(task, small, plug.load(RECIPES, asked.recipe).train(task))
        return result._replace(run=Path("(nothing kept)"), story=forecast(task, asked.settings, sets))


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
        model, *others = matching.names_of(str(weights), load_weights(weights))
        if others:
            text = "%s is taken for weights of %s; if it is of %s, which prepares pictures differently, say --model."
            logger.warning(text, weights, model, " or ".join(others))
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


def _sets(asked: Asked, view: View, world: World, chosen: dict[str, Any] | None = None) -> Sets:
    """The pictures; a recipe that validates by itself learns from all that are not for judging."""
    recipe = plug.load(RECIPES, asked.recipe)
    own, check = (getattr(recipe, name, False) for name in ("OWN_VALIDATION", "CHECKS"))
    return make_sets(asked.source, asked.settings, view, world, hold=not own, check=check, chosen=chosen)


def _check_place(path: Path, source: Source) -> None:
    if source.root is not None and source.root.is_dir() and path.resolve().is_relative_to(source.root.resolve()):
        raise RunError(
            "the run would lie inside the data, which is never written to.", got=f"{path}.", hint="another --run."
        )


def _finish(task: Task, asked: Asked, outcome: Outcome) -> Training:
    """Judge the model, write the artefact, and tell the result."""
    model, sets, world = outcome.model, task.sets, task.world
    metric = "map" if sets.several else "top1"
    test = None if sets.test is None else task.outputs(model, sets.test, "Testing")
    scores: dict[str, dict[str, Any] | None] = {"val": None, "test": None}
    for split, outputs in (("val", outcome.val), ("test", test)):
        if outputs is not None:
            score = score_of(outputs, several=sets.several)
            scores[split] = {metric: score.value, "n": score.n}
    name, recipe = model.name, asked.recipe
    seconds = round(task.earlier + time.monotonic() - task.started, 2)
    result = {"recipe": recipe, "steps": outcome.steps, "seconds": seconds, **scores, "story": list(outcome.story)}
    if world.leads:
        reader = Reader(model.preprocess)
        golden = np.stack([reader.stored(picture) for picture in islice(iter(sets.val), NUM_GOLDEN)])
        task.config["model"] = {
            "name": name,
            "family": catalogue.family_of(model.spec).__name__.rpartition(".")[2],
            "spec": model.spec.model_dump(mode="json"),
        }
        task.config["preprocess"] = model.preprocess.model_dump(mode="json")
        directory.write_config(task.run, task.config)
        card = {
            "title": task.run.name,
            "model": name,
            "num_classes": len(sets.classes),
            "num_train": len(sets.train),
            "metric": metric,
            "command": task.config.get("command", ""),
            "machine": f"{num_cores()} cores of {platform.machine()}, PyTorch {torch.__version__}",
            "story": " ".join((sets.story, *outcome.story)),
        }
        write_artefact(task.run, model, classes=sets.classes, golden=torch.from_numpy(golden), result=result, card=card)
    return Training(task.run, recipe, outcome.steps, seconds, scores["val"] or {}, scores["test"], outcome.story)
