"""The end of a run: its model judged, calibrated, kept, and told about."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
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
from vitrail.data.table import Table
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError
from vitrail.machine import num_cores
from vitrail.metric.summary import Summary
from vitrail.run import directory
from vitrail.run.artefact import mark_finished, write_artefact
from vitrail.run.calibrate import calibrate
from vitrail.run.golden import NUM_GOLDEN
from vitrail.run.predictions import PREDICTIONS, prediction_rows, summary_of, write_predictions, write_summaries
from vitrail.training.evaluation import Outputs
from vitrail.training.task import Outcome, Task

SHOWN = 3  # pictures that are named


def finish_run(task: Task, recipe: str, outcome: Outcome) -> dict[str, Any]:
    """Test and calibrate the model, write everything that belongs to the run, and return its result."""
    model, sets = outcome.model, task.sets
    test = None if sets.test is None else task.outputs(model, sets.test, "Testing")
    calibration = calibrate(outcome.val.logits, outcome.val.labels, multi_label=sets.multi_label)
    judged = {split: outputs for split, outputs in (("val", outcome.val), ("test", test)) if outputs is not None}
    summaries = {
        split: summary_of(outputs.logits, outputs.labels, sets.classes, calibration)
        for split, outputs in judged.items()
        if _sound(outputs)
    }
    result: dict[str, Any] = {
        "recipe": recipe,
        "steps": outcome.steps,
        "seconds": round(task.timing.total, 2),
        **{split: _score(summaries.get(split), judged.get(split)) for split in ("val", "test")},
        "story": list(outcome.story),
        "seconds_by_phase": task.timing.phases(),
        "images_per_second": task.timing.speed or None,
    }
    if sets.val is sets.train:
        result["val"]["cross_validated"] = True
    skipped = {name: detail for part in task.world.all_gather(task.skipped) for name, detail in part.items()}
    if skipped:
        outcome = outcome._replace(story=(*outcome.story, _left_out(sorted(skipped))))
        result["story"] = list(outcome.story)
    if task.world.is_rank_zero:
        task.config["model"] = {
            "name": model.name,
            "family": catalogue.family_of(model.spec).__name__.rpartition(".")[2],
            "spec": model.spec.model_dump(mode="json"),
        }
        task.config["preprocess"] = model.preprocess.model_dump(mode="json")
        directory.write_config(task.run, task.config)
        facts = _facts(task, outcome, skipped)
        write_artefact(
            task.run,
            model,
            classes=sets.classes,
            golden=_golden(task, model.preprocess),
            calibration=calibration,
            card={"facts": facts, "result": result, "summaries": summaries},
        )
        rows = [
            row
            for split, outputs in judged.items()
            for row in prediction_rows(split, outputs.names, outputs.logits, outputs.labels, sets.classes, calibration)
        ]
        write_predictions(task.run / PREDICTIONS, rows)
        write_summaries(task.run, {"facts": facts, "result": result}, summaries)
        mark_finished(task.run, result)
    model.labels, model.calibration = tuple(sets.classes), calibration
    return {**result, "story": outcome.story}


def _left_out(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    pictures = "1 picture" if len(names) == 1 else f"{len(names):,} pictures"
    return f"{pictures} could not be read, so left out: {', '.join(names[:SHOWN])}{more}."


def _golden(task: Task, preprocess: Preprocess) -> UInt8[Tensor, "n Y X C"]:
    """The first validation pictures, without those that cannot be read where such are left out."""
    reader, skips = Reader(preprocess), task.settings.on_error == "skip"

    def stored() -> Iterator[Pixels]:
        for picture in task.sets.val:
            with suppress(DataError) if skips else nullcontext():
                yield reader.read(picture)

    return torch.from_numpy(np.stack(list(islice(stored(), NUM_GOLDEN))))


def _sound(outputs: Outputs) -> bool:
    return len(outputs.logits) > 0 and bool(outputs.logits.isfinite().all())


def _score(account: Summary | None, outputs: Outputs | None) -> dict[str, Any] | None:
    """What the result says of a split."""
    if outputs is None:
        return None
    if account is None:  # outputs that are not finite are never right
        return {"map" if outputs.labels.ndim == 2 else "top1": 0.0, "n": len(outputs.logits), "interval": [0.0, 1.0]}
    if account.map is not None and account.map_interval is not None:
        return {"map": account.map, "n": account.n, "interval": list(account.map_interval)}
    return {"top1": account.top1, "n": account.n, "interval": list(account.interval)}


def _facts(task: Task, outcome: Outcome, skipped: dict[str, str]) -> dict[str, Any]:
    """What the report and the card tell beside scores."""
    sets, model = task.sets, outcome.model
    findings = sets.findings
    absent = sum(name in skipped for name in sets.train.names) if isinstance(sets.train, Table) else 0
    return {
        "title": task.run.resolve().name,
        "model": model.name,
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "classes": len(sets.classes),
        "multi_label": sets.multi_label,
        "num_train": len(sets.train) - absent,
        "skipped": skipped,
        "own_validation": sets.val is sets.train,
        "command": task.config.get("command", ""),
        "machine": f"{num_cores()} core{'s' if num_cores() > 1 else ''} of {platform.machine()}",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "story": " ".join((sets.story, *outcome.story)),
        "findings": None if findings is None else [list(each) for each in findings],
    }
