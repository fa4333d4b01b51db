"""From pictures to the best model that this machine can give within the time that the user has."""

from __future__ import annotations

import platform
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
from vitrail.train import world as processes
from vitrail.train.events import writer_class
from vitrail.train.judge import score_of
from vitrail.train.sets import Sets, fingerprint, make_sets
from vitrail.train.settings import LENGTHS, Common
from vitrail.train.task import Outcome, Task
from vitrail.train.view import Silent, View
from vitrail.weights.source import load_weights

RECIPES = "vitrail.train.recipe"
MINUTES = 10.0  # that a run takes if no length is told
NUM_GOLDEN = 8
MODEL_WORD = "model."


class Training(NamedTuple):
    """What a run came to: where it is, what was done, and the scores on pictures that it did not learn from."""

    run: Path
    recipe: str
    steps: int
    seconds: float
    val: dict[str, Any]
    test: dict[str, Any] | None
    story: tuple[str, ...]


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
    shard: bool = False,
    data_dir: str | Path | None = None,
    command: str = "vitrail.train(...)",
    view: View | None = None,
) -> Training:
    """Train a classifier on data of any layout and keep it, with all that belongs to it, in the directory `run`.

    `settings` are words `key=value` for fields of the recipe, or of the model if they begin with `model.`. The same
    call again goes on with a run that was interrupted, and only tells the result of one that has ended.
    """
    started = time.monotonic()
    view = view or Silent()
    chosen = parse_settings(recipe, settings, minutes=minutes, seed=seed, has_weights=weights is not None)
    source = open_data(data, data_dir=data_dir)
    words = [word.removeprefix(MODEL_WORD) for word in settings if word.startswith(MODEL_WORD)]
    name, new_model = model_maker(source, model, weights, words)
    new_model(num_classes=2)  # whatever is wrong with the model is told before anything is begun
    path = Path(run) if run is not None else Path("runs") / f"{Path(str(data)).stem or 'data'}-{recipe}"
    _check_place(path, source)
    asked = {
        "data": str(data),
        "model": model,
        "weights": None if weights is None else str(weights),
        "recipe": recipe,
        "settings": chosen.model_dump(mode="json"),
        "model_settings": words,
        "data_fingerprint": fingerprint(source),
    }
    world = processes.join()
    with directory.claim(path) if world.leads else nullcontext():
        before = world.share(directory.stored_config(path) if world.leads else None)
        if before is not None:
            directory.check_same(path, before["asked"], asked)
            result = directory.read_result(path)
            if result is not None:
                view.say("This run has ended before; here is its result. For another, give --run a new folder.")
                return Training(**{**result, "run": path, "story": tuple(result["story"])})
        config = before or {"asked": asked, "command": command}
        task = Task(
            run=path,
            sets=_sets(source, chosen, recipe, view),
            settings=chosen,
            new_model=new_model,
            has_weights=weights is not None,
            view=view if world.leads else Silent(),
            world=world,
            shard=shard,
            config=config,
            started=started,
        )
        if world.leads:
            directory.write_config(path, config)
        outcome = plug.load(RECIPES, recipe).train(task)
        return _finish(task, outcome, name, recipe, command)


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
    source: Source, model: str | None, weights: str | Path | None, words: Sequence[str]
) -> tuple[str, Callable[..., Any]]:
    """The model's name, and how to make it; by the shapes of the weights where no name is told."""
    if model is None and weights is not None:
        loaded = load_weights(weights)
        model = matching.matches(loaded, matching.candidates(str(weights)))[0][0]
    elif model is None:
        model = plug.load(RECIPES, "scratch").suggest(source)
    name = str(model)
    spec = catalogue.spec_named(name).override_words(words)
    fields = {key: getattr(spec, key) for key in (word.partition("=")[0].partition(".")[0] for word in words)}

    def new_model(**more: Any) -> Any:
        torch.manual_seed(0)
        made = catalogue.create_model(name, weights=weights, **{**fields, **more})
        made.preprocess = made.preprocess or Preprocess(size=made.spec.image_size)
        return made

    return name, new_model


def _sets(source: Source, settings: Common, recipe: str, view: View) -> Sets:
    """The pictures; a recipe that validates by itself learns from all that are not for judging."""
    own = getattr(plug.load(RECIPES, recipe), "OWN_VALIDATION", False)
    return make_sets(source, settings, view, hold=not own)


def _check_place(path: Path, source: Source) -> None:
    if source.root is not None and source.root.is_dir() and path.resolve().is_relative_to(source.root.resolve()):
        raise RunError(
            "the run would lie inside the data, which is never written to.", got=f"{path}.", hint="another --run."
        )


def _finish(task: Task, outcome: Outcome, name: str, recipe: str, command: str) -> Training:
    """Judge the model, write the artefact, and tell the result."""
    model, sets, world = outcome.model, task.sets, task.world
    metric = "map" if sets.several else "top1"
    test = None if sets.test is None else task.outputs(model, sets.test, "Testing")
    scores: dict[str, dict[str, Any] | None] = {"val": None, "test": None}
    for split, outputs in (("val", outcome.val), ("test", test)):
        if outputs is not None:
            score = score_of(outputs, several=sets.several)
            scores[split] = {metric: score.value, "n": score.n}
    seconds = round(time.monotonic() - task.started, 2)
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
            "command": command,
            "machine": f"{num_cores()} cores of {platform.machine()}, PyTorch {torch.__version__}",
            "story": " ".join((sets.story, *outcome.story)),
        }
        write_artefact(task.run, model, classes=sets.classes, golden=torch.from_numpy(golden), result=result, card=card)
    return Training(task.run, recipe, outcome.steps, seconds, scores["val"] or {}, scores["test"], outcome.story)
