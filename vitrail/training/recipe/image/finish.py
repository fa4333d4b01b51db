"""The end of a run on images or clips: write the run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail import catalogue
from vitrail.data.decode import Pixels
from vitrail.data.reader import Reader
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError
from vitrail.run import directory
from vitrail.run.artefact import Card, mark_finished, write_artefact
from vitrail.run.golden import NUM_GOLDEN
from vitrail.training.closing import collect_facts, collect_skipped, make_result
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.task import Outcome, Task


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
    model = as_classifier(outcome.model)
    preprocess = model.about.preprocess
    assert preprocess is not None
    skipped = collect_skipped(task)
    speed_key = "images_per_second" if preprocess.modality == "image" else "samples_per_second"
    result = make_result(task, recipe, outcome, scores, skipped, speed_key)
    if task.world.is_rank_zero:
        task.config["kind"], task.config["objective"] = model.about.kind, objective
        task.config["model"] = {
            "name": model.name,
            "family": catalogue.family_of(model.spec).__name__.rpartition(".")[2],
            "spec": model.spec.model_dump(mode="json"),
        }
        task.config["prepare"] = {"name": preprocess.modality, **preprocess.model_dump(mode="json")}
        directory.write_config(task.run, task.config)
        num_params = sum(parameter.numel() for parameter in model.parameters())
        general = collect_facts(task, model=model.name, num_params=num_params, notes=result["story"], skipped=skipped)
        all_facts = {**general, **facts}
        golden = golden_images(task, preprocess) if isinstance(preprocess, Preprocess) else None
        write_artefact(task.run, model, golden=golden, card=lambda opens: card(all_facts, result, opens))
        write_tables({"facts": all_facts, "result": result})
        mark_finished(task.run, result)
    return {**result, "story": tuple(result["story"])}


def golden_images(task: Task, preprocess: Preprocess) -> UInt8[Tensor, "n Y X C"]:
    """The first validation images, without unreadable ones if `on_error` is `skip`."""
    reader, skips = Reader(preprocess), task.settings.on_error == "skip"

    def read_images() -> Iterator[Pixels]:
        for item in task.splits.val:
            with suppress(DataError) if skips else nullcontext():
                yield reader.read(item)

    return torch.from_numpy(np.stack(list(islice(read_images(), NUM_GOLDEN))))
