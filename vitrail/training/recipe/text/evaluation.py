"""Evaluating a finished run on text: which split of which data, and the answers of its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail import plug
from vitrail.contract import Objective
from vitrail.data.loader import Loader
from vitrail.data.preparation import Preparation
from vitrail.data.table import Source, Table
from vitrail.errors import DataError, RunError
from vitrail.run.text_model import TextModel
from vitrail.training.evaluation import Answers, ProgressCallback, infer
from vitrail.training.learner import Learner
from vitrail.training.settings import CommonSettings
from vitrail.training.splits import was_trained_on
from vitrail.training.world import World

BATCH_SIZE = 32
ALL = "all"  # data without splits that the run was not trained on


@dataclass(frozen=True, kw_only=True)
class TextEvaluation:
    """The scores of a model of text on a data set, as in result.json."""

    kind: str
    split: str
    scores: dict[str, Any]
    learned_from: bool
    """Whether the run was trained on this split, so that the scores say nothing about other texts."""


def run_settings(opened: TextModel) -> CommonSettings:
    """The settings that a run was trained with."""
    try:
        request = opened.config["request"]
        return plug.load("vitrail.training.recipe", request["recipe"]).Spec.parse(request["settings"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{opened.path} does not say how it was trained.", got=f"{error!r}.") from None


def open_split(
    opened: TextModel,
    data: str | Path,
    split: str | None,
    *,
    open_source: Callable[[str | Path, CommonSettings], Source],
    split_names: Callable[[Table], tuple[str, ...]],
) -> tuple[Table, str, bool]:
    """Open data; return it, the split to evaluate, and whether the run was trained on that split.

    It is the requested split, else test, else val. A text without splits that the run was not trained on is evaluated
    as a whole.
    """
    source = open_source(data, run_settings(opened))
    assert isinstance(source, Table)
    trained = was_trained_on(opened.path, source)
    names = split_names(source) if source.split_names or trained else (ALL,)
    chosen = split or next((name for name in ("test", "val", ALL) if name in names), names[0])
    if chosen not in names:
        raise RunError(
            f"{data} has no split {chosen!r}.", got=f"the splits {', '.join(names)}.", hint=f"--split {names[0]}."
        )
    return source, chosen, trained and chosen == "train"


def answer_table(
    opened: TextModel,
    table: Table,
    prepare: Preparation,
    objective: Objective,
    *,
    batch_size: int = BATCH_SIZE,
    progress: ProgressCallback | None = None,
) -> Answers:
    """The answers of a finished model for all items of a table."""
    loader = Loader(source=table, prepare=prepare, batch_size=batch_size)
    answers = infer(Learner(opened.model, objective), loader, World(), progress=progress)
    if not bool(answers["loss"].isfinite().all()) or not bool(answers["units"].any()):
        raise DataError(
            "there are no finite losses to score.",
            got=f"{int(answers['units'].sum()):,} tokens to predict.",
            hint="another text, or another run.",
        )
    return answers
