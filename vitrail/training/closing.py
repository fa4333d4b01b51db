"""What the end of every run has in common: its result, and the facts that report and model card show."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch

from vitrail.data.table import Table
from vitrail.machine import num_cores
from vitrail.training.evaluation import Answers
from vitrail.training.task import Outcome, Task

MAX_SHOWN = 3  # samples named in a message


def answer_splits(task: Task, outcome: Outcome) -> dict[str, Answers]:
    """The answers for the validation split and, if there is one, the test split."""
    test = task.splits.test
    return {"val": outcome.val, **({} if test is None else {"test": task.infer(outcome.model, test, "Testing")})}


def collect_skipped(task: Task) -> dict[str, str]:
    """The unreadable items that any process skipped, with the reason."""
    return {name: detail for part in task.world.all_gather(task.skipped) for name, detail in part.items()}


def make_result(
    task: Task,
    recipe: str,
    outcome: Outcome,
    scores: dict[str, Any],
    skipped: dict[str, str],
    speed_key: str = "samples_per_second",
) -> dict[str, Any]:
    """The result of a run, as in result.json; `scores` holds the score of each split."""
    if task.splits.val is task.splits.train:
        scores["val"]["cross_validated"] = True
    notes = (*outcome.notes, *([_describe_skipped(sorted(skipped), task.kind.NOUN)] if skipped else []))
    return {
        "recipe": recipe,
        "steps": outcome.steps,
        "seconds": round(task.timing.total, 2),
        **{split: scores.get(split) for split in ("val", "test")},
        "story": list(notes),
        "seconds_by_phase": task.timing.phases(),
        speed_key: task.timing.speed or None,
    }


def _describe_skipped(names: Sequence[str], noun: str) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    items = f"1 unreadable {noun.removesuffix('s')}" if len(names) == 1 else f"{len(names):,} unreadable {noun}"
    return f"Skipped {items}: {', '.join(names[:MAX_SHOWN])}{more}."


def collect_facts(
    task: Task, *, model: str, num_params: int, notes: Sequence[str], skipped: dict[str, str]
) -> dict[str, Any]:
    """What the report and the model card show besides scores."""
    splits = task.splits
    num_skipped = sum(name in skipped for name in splits.train.names) if isinstance(splits.train, Table) else 0
    return {
        "title": task.run.resolve().name,
        "model": model,
        "params": num_params,
        "num_train": len(splits.train) - num_skipped,
        "skipped": skipped,
        "own_validation": splits.val is splits.train,
        "command": task.config.get("command", ""),
        "machine": f"{num_cores()} core{'s' if num_cores() > 1 else ''} of {platform.machine()}",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "story": " ".join((splits.note, *notes)),
        "findings": None if splits.findings is None else [list(each) for each in splits.findings],
    }
