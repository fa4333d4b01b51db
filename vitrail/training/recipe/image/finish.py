"""The end of a run on images: answer the test split, and write the run directory."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail import catalogue
from vitrail.contract import Classifier
from vitrail.data.decode import Pixels
from vitrail.data.reader import Reader
from vitrail.data.table import Table
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError
from vitrail.machine import num_cores
from vitrail.run import directory
from vitrail.run.artefact import Card, mark_finished, write_artefact
from vitrail.run.golden import NUM_GOLDEN
from vitrail.training.evaluation import Answers
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.task import Outcome, Task

MAX_SHOWN = 3  # images named in a message


def answer_splits(task: Task, outcome: Outcome) -> dict[str, Answers]:
    """The answers for the validation split and, if there is one, the test split."""
    test = task.splits.test
    return {"val": outcome.val, **({} if test is None else {"test": task.infer(outcome.model, test, "Testing")})}


def write_run(
    task: Task,
    recipe: str,
    outcome: Outcome,
    *,
    scores: dict[str, Any],
    objective: str,
    facts: dict[str, Any],
    card: Card,
    write_tables: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Write the files of a run and return its result.

    `scores` holds the score of each split, `card` makes the model card, `write_tables` writes predictions and summaries
    from the facts that the report shows.
    """
    splits, model = task.splits, as_classifier(outcome.model)
    if splits.val is splits.train:
        scores["val"]["cross_validated"] = True
    skipped = {name: detail for part in task.world.all_gather(task.skipped) for name, detail in part.items()}
    notes = (*outcome.notes, *([_describe_skipped(sorted(skipped))] if skipped else []))
    result: dict[str, Any] = {
        "recipe": recipe,
        "steps": outcome.steps,
        "seconds": round(task.timing.total, 2),
        **{split: scores.get(split) for split in ("val", "test")},
        "story": list(notes),
        "seconds_by_phase": task.timing.phases(),
        "images_per_second": task.timing.speed or None,
    }
    if task.world.is_rank_zero:
        task.config["kind"], task.config["objective"] = model.about.kind, objective
        task.config["model"] = {
            "name": model.name,
            "family": catalogue.family_of(model.spec).__name__.rpartition(".")[2],
            "spec": model.spec.model_dump(mode="json"),
        }
        task.config["prepare"] = {"name": "image", **model.preprocess.model_dump(mode="json")}
        directory.write_config(task.run, task.config)
        all_facts = {**_collect_facts(task, model, notes, skipped), **facts}
        golden = golden_images(task, model.preprocess)
        write_artefact(task.run, model, golden=golden, card=lambda opens: card(all_facts, result, opens))
        write_tables({"facts": all_facts, "result": result})
        mark_finished(task.run, result)
    return {**result, "story": notes}


def _describe_skipped(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    images = "1 unreadable image" if len(names) == 1 else f"{len(names):,} unreadable images"
    return f"Skipped {images}: {', '.join(names[:MAX_SHOWN])}{more}."


def golden_images(task: Task, preprocess: Preprocess) -> UInt8[Tensor, "n Y X C"]:
    """The first validation images, without unreadable ones if `on_error` is `skip`."""
    reader, skips = Reader(preprocess), task.settings.on_error == "skip"

    def read_images() -> Iterator[Pixels]:
        for item in task.splits.val:
            with suppress(DataError) if skips else nullcontext():
                yield reader.read(item)

    return torch.from_numpy(np.stack(list(islice(read_images(), NUM_GOLDEN))))


def _collect_facts(task: Task, model: Classifier, notes: Sequence[str], skipped: dict[str, str]) -> dict[str, Any]:
    """What the report and the model card show besides scores."""
    splits = task.splits
    num_skipped = sum(name in skipped for name in splits.train.names) if isinstance(splits.train, Table) else 0
    return {
        "title": task.run.resolve().name,
        "model": model.name,
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "num_train": len(splits.train) - num_skipped,
        "skipped": skipped,
        "own_validation": splits.val is splits.train,
        "command": task.config.get("command", ""),
        "machine": f"{num_cores()} core{'s' if num_cores() > 1 else ''} of {platform.machine()}",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "story": " ".join((splits.note, *notes)),
        "findings": None if splits.findings is None else [list(each) for each in splits.findings],
    }
