"""Transfer a backbone to many data sets, by VTAB's protocol (arXiv 1910.04867), beside the paper's results.

Each data set gives 1,000 training images. The learning rate is chosen on 200 of them, which the run holds out; the test
images are read once, by the chosen run. Every run is one of the verb train and resumes as such.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail import plug
from vitrail.benchmark.compare import hardware
from vitrail.benchmark.transfer import (
    Backbone,
    DataResult,
    MeanRow,
    SeedScore,
    TransferRow,
    common_reasons,
    make_means,
    make_rows,
    paper_tables,
    plain_name,
    pool_seeds,
)
from vitrail.data.find import open_data
from vitrail.data.held_out import hold_out
from vitrail.data.rng import make_rng, times_before
from vitrail.data.table import SPLITS, Table
from vitrail.errors import DataError, RunError, SpecError
from vitrail.files import write_text
from vitrail.pages import check_page
from vitrail.report.transfer import render_transfer
from vitrail.request import DEFAULT_MINUTES, RECIPES, parse_request
from vitrail.run import directory
from vitrail.training.splits import fingerprint
from vitrail.training.view import SilentView, View
from vitrail.verbs.evaluate import Evaluation, evaluate
from vitrail.verbs.train import train

RECIPE_NAMES = ("probe", "finetune")
NUM_EXAMPLES, VAL_SHARE = 1000, 0.2  # VTAB: 800 to train, 200 to choose the learning rate
TEST_SHARE = 0.2  # of data without a test split
RATES = (1.0, 1 / 3, 3.0)  # times the recipe's learning rate, which wins a tie
MIN_PER_CLASS = 2  # one to train, one to validate
TEST, DOCUMENT, PAGE = "test.json", "transfer.json", "transfer.html"


class Transfer(NamedTuple):
    """A backbone on several data sets."""

    weights: str
    model: str
    num_params: int
    image_size: tuple[int, ...]
    recipes: tuple[str, ...]
    examples: int
    minutes: float
    seeds: int
    columns: tuple[str, ...]
    """The models of the paper, in the order of the scores of each row's `paper`."""
    reasons: tuple[str, ...]
    """Why no row can equal the paper's."""
    data: tuple[DataResult, ...]
    rows: tuple[TransferRow, ...]
    means: tuple[MeanRow, ...]
    hardware: dict[str, Any]
    page: Path

    def document(self) -> dict[str, Any]:
        """The result as JSON has it."""
        lists = {name: [_plain(each) for each in getattr(self, name)] for name in ("data", "rows", "means")}
        return {**self._asdict(), **lists, "page": str(self.page)}


class DataSet(NamedTuple):
    """A data set that was given, by its name."""

    name: str
    data: str
    pool: Table
    """The images to draw training images from."""
    test: Table

    @property
    def folder(self) -> str:
        """Where its runs are."""
        return re.sub(r"[^\w.-]+", "-", self.name)

    def draw(self, num: int, seed: int) -> Table:
        """Draw training images at random, but some of each class."""
        order = make_rng("split", seed=seed, epoch=0).permutation(len(self.pool))
        is_extra = times_before(self.pool.labels[order]) >= MIN_PER_CLASS
        chosen = order[np.argsort(is_extra, kind="stable")][:num]
        return _as_split(self.pool.only(np.sort(chosen)), "train")


class Settings(NamedTuple):
    """What all runs share."""

    weights: str | Path
    model: str | None
    image_size: tuple[int, ...]
    examples: int
    minutes: float
    command: str
    folder: Path
    view: View


def transfer(
    weights: str | Path,
    data: Sequence[str | Path],
    *,
    model: str | None = None,
    recipes: Sequence[str] = RECIPE_NAMES,
    examples: int = NUM_EXAMPLES,
    minutes: float = DEFAULT_MINUTES,
    seeds: int = 1,
    run: str | Path = "runs/transfer",
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    command: str = "vitrail.transfer(...)",
    view: View | None = None,
) -> Transfer:
    """Train a model from the same weights on each data set, and write a table and a page in the folder `run`.

    `data` are data sets as `train` opens them, or `NAME=DATA`; a name that the paper's table or VTAB knows ties the
    data set to its row. `examples` training images are drawn from each. `minutes` are those of one run; the recipe
    finetune has one for each learning rate that it tries. `seeds` repeats all of it with other images. `out` is the
    page. The same call resumes an interrupted one, and does not repeat what has finished.
    """
    folder, view = Path(run), view or SilentView()
    page = folder / PAGE if out is None else Path(out)
    if out is not None:
        check_page(page, RunError)
    names = _check_recipes(recipes)
    data_sets = _open_all(data, data_dir)
    settings = Settings(weights, model, (), examples, minutes, command, folder, view)
    backbone = _check_requests(data_sets, names, settings)
    settings = settings._replace(image_size=backbone.image_size)
    results = _transfer_all(data_sets, names, seeds, settings)
    rows = make_rows(results, backbone, names)
    result = Transfer(
        weights=str(weights),
        model=backbone.name,
        num_params=backbone.num_params,
        image_size=backbone.image_size,
        recipes=names,
        examples=examples,
        minutes=minutes,
        seeds=seeds,
        columns=tuple(column.title for column in paper_tables().columns),
        reasons=common_reasons(backbone, names, minutes),
        data=results,
        rows=rows,
        means=make_means(results, rows, names),
        hardware=hardware(),
        page=page,
    )
    directory.write_json(folder / DOCUMENT, result.document())
    write_text(render_transfer(result, paper_tables().groups), page, RunError)
    return result


def _check_recipes(recipes: Sequence[str]) -> tuple[str, ...]:
    """Refuse recipes that do not start from weights, and repeated ones."""
    for recipe in recipes:
        if not getattr(plug.load(RECIPES, recipe), "NEEDS_WEIGHTS", False):
            raise SpecError(
                f"the recipe {recipe} does not transfer weights.", got=f"--recipes {recipe}.", hint="probe,finetune."
            )
    if not recipes or len(set(recipes)) < len(recipes):
        raise SpecError("each recipe is named once.", got=f"{', '.join(recipes) or 'none'}.", hint="probe,finetune.")
    return tuple(recipes)


def _open_all(words: Sequence[str | Path], data_dir: str | Path | None) -> list[DataSet]:
    """Open all data sets; refuse two of the same name."""
    if not words:
        raise DataError("there is no data to transfer to.", got="none.", hint="a folder, or CIFAR-10=cifar10.npz.")
    data_sets = [_open(*_split_name(str(word)), data_dir) for word in words]
    seen: dict[str, DataSet] = {}
    for each in data_sets:
        other = seen.setdefault(plain_name(each.name), each)
        if other is not each:
            raise DataError(
                f"two data sets are called {each.name}.", got=f"{other.data} and {each.data}.", hint="NAME=DATA."
            )
    return data_sets


def _split_name(word: str) -> tuple[str, str]:
    """The name of a data set and where it is: `NAME=DATA`, or the name of the file or folder."""
    name, equals, data = word.partition("=")
    if equals and not Path(word).exists():
        if not plain_name(name):
            raise DataError("a data set needs a name.", got=f"{word!r}.", hint="NAME=DATA.")
        return name, data
    return Path(word).stem or word, word


def _open(name: str, data: str, data_dir: str | Path | None) -> DataSet:
    """Open a data set; one without a test split gets one."""
    source = open_data(data, data_dir=data_dir)
    kind = "shards" if not isinstance(source, Table) else "multi-label data" if source.multi_label else source.kind
    if not isinstance(source, Table) or kind != "classification":
        raise DataError(
            f"{name} cannot be transferred to.",
            got=f"{data}: {kind}.",
            hint="images with one label each, not in shards.",
        )
    if "test" in source.split_names:
        is_test = source.splits == SPLITS.index("test")
        pool, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    else:
        pool, test, _ = hold_out(source, fraction=TEST_SHARE, seed=0, scans=None)
    if not len(pool) or not len(test):
        raise DataError(
            f"{name} needs images to train on and others to test on.",
            got=f"{len(pool):,} and {len(test):,}.",
            hint="splits train and test, or no splits.",
        )
    return DataSet(name, data, source.only(pool), _as_split(source.only(test), "test"))


def _as_split(table: Table, name: str) -> Table:
    return replace(table, splits=np.full(len(table), SPLITS.index(name), dtype=table.splits.dtype))


def _check_requests(data_sets: Sequence[DataSet], recipes: Sequence[str], settings: Settings) -> Backbone:
    """Refuse, before anything is trained, what the runs would refuse."""
    for each in data_sets:
        needed = MIN_PER_CLASS * len(each.pool.classes)
        if settings.examples < needed:
            raise DataError(
                f"{each.name} has too many classes for so few training images.",
                got=f"{len(each.pool.classes):,} classes and {settings.examples:,} images.",
                hint=f"--examples {needed} or more.",
            )
        for recipe in recipes:
            request = parse_request(
                *(each.draw(settings.examples, 0), settings.model, settings.weights, recipe),
                *(settings.minutes, (), 0, None),
            )
            request.kind.check_source(request.source)
    backbone = request.new_model(num_classes=0)
    num_params = sum(parameter.numel() for parameter in backbone.parameters())
    resized = tuple(change for change in backbone.changes if change.startswith("position table"))
    return Backbone(backbone.name, num_params, tuple(backbone.spec.image_size), resized)


def _transfer_all(
    data_sets: Sequence[DataSet], recipes: Sequence[str], seeds: int, settings: Settings
) -> tuple[DataResult, ...]:
    """Train and test every recipe on every data set."""
    num_runs = len(data_sets) * seeds * sum(len(_candidates(recipe)) for recipe in recipes)
    counter = iter(range(1, num_runs + 1))
    results = []
    for each in data_sets:
        scores = {}
        for recipe in recipes:
            tested = []
            for seed in range(seeds):
                folder = Path(each.folder) / recipe / f"seed-{seed}"
                label = f"of {num_runs}: {each.name}, {recipe}, seed {seed}"
                tested.append(_transfer_one(each, recipe, seed, folder, settings, counter, label))
            scores[recipe] = pool_seeds(tested)
        num_train = min(settings.examples, len(each.pool))
        results.append(
            DataResult(each.name, each.data, len(each.pool.classes), len(each.pool), num_train, len(each.test), scores)
        )
    return tuple(results)


def _candidates(recipe: str) -> dict[str, tuple[str, ...]]:
    """The runs to try, by folder: one for each learning rate, or one if the recipe cross-validates."""
    module = plug.load(RECIPES, recipe)
    if getattr(module, "CROSS_VALIDATES", False):
        return {"run": ()}
    rates = [f"{module.Spec().lr * factor:g}" for factor in RATES]
    return {f"lr-{rate}": (f"lr={rate}", f"val_share={VAL_SHARE}") for rate in rates}


def _transfer_one(
    data_set: DataSet, recipe: str, seed: int, folder: Path, settings: Settings, counter: Iterator[int], label: str
) -> SeedScore:
    """Try each candidate, and test the one with the best validation score."""
    source, seconds = data_set.draw(settings.examples, seed), 0.0
    tried: dict[str, float] = {}
    steps: dict[str, int] = {}
    for name, words in _candidates(recipe).items():
        settings.view.say(f"Run {next(counter)} {label}{', ' if words else ''}{words[0] if words else ''}.")
        result = train(
            source,
            model=settings.model,
            weights=settings.weights,
            recipe=recipe,
            minutes=settings.minutes,
            run=settings.folder / folder / name,
            settings=(*words, f"model.image_size={list(settings.image_size)}"),
            seed=seed,
            report=False,
            command=settings.command,
            view=settings.view,
        )
        tried[name], steps[name] = result.val["top1"], result.steps
        seconds += result.seconds
    best = max(tried, key=lambda name: tried[name])
    top1 = _test(settings.folder / folder, best, tried[best], data_set.test, settings.view)
    return SeedScore(seed, str(folder / best), tried[best], top1, len(data_set.test), tried, steps, seconds)


def _test(folder: Path, run: str, val: float, test: Table, view: View) -> float:
    """The test accuracy of a run, computed once and stored beside it."""
    asked = {"run": run, "val": val, "test": fingerprint(test)}
    try:
        stored = json.loads((folder / TEST).read_text(encoding="utf-8"))
        if {**stored, **asked} == stored:
            return float(stored["top1"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = evaluate(folder / run, test, progress=lambda done, total: view.progress("Testing", done, total))
    assert isinstance(found, Evaluation)
    directory.write_json(folder / TEST, {**asked, "top1": found.top1})
    return found.top1


def _plain(item: Any) -> Any:
    """Named tuples as dictionaries, whatever is in them."""
    if hasattr(item, "_asdict"):
        return {key: _plain(value) for key, value in item._asdict().items()}
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    return [_plain(each) for each in item] if isinstance(item, tuple) else item
