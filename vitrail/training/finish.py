"""The end of a run: test and calibrate the model, and write the run directory."""

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

MAX_SHOWN = 3  # images named in a message


def finish_run(task: Task, recipe: str, outcome: Outcome) -> dict[str, Any]:
    """Test and calibrate the model, write the files of the run, and return its result."""
    model, splits = outcome.model, task.splits
    test = None if splits.test is None else task.infer(model, splits.test, "Testing")
    calibration = calibrate(outcome.val.logits, outcome.val.labels, multi_label=splits.multi_label)
    outputs_by_split = {
        split: outputs for split, outputs in (("val", outcome.val), ("test", test)) if outputs is not None
    }
    summaries = {
        split: summary_of(outputs.logits, outputs.labels, splits.classes, calibration)
        for split, outputs in outputs_by_split.items()
        if _is_finite(outputs)
    }
    result: dict[str, Any] = {
        "recipe": recipe,
        "steps": outcome.steps,
        "seconds": round(task.timing.total, 2),
        **{split: _score(summaries.get(split), outputs_by_split.get(split)) for split in ("val", "test")},
        "story": list(outcome.notes),
        "seconds_by_phase": task.timing.phases(),
        "images_per_second": task.timing.speed or None,
    }
    if splits.val is splits.train:
        result["val"]["cross_validated"] = True
    skipped = {name: detail for part in task.world.all_gather(task.skipped) for name, detail in part.items()}
    if skipped:
        outcome = outcome._replace(notes=(*outcome.notes, _describe_skipped(sorted(skipped))))
        result["story"] = list(outcome.notes)
    if task.world.is_rank_zero:
        task.config["model"] = {
            "name": model.name,
            "family": catalogue.family_of(model.spec).__name__.rpartition(".")[2],
            "spec": model.spec.model_dump(mode="json"),
        }
        task.config["preprocess"] = model.preprocess.model_dump(mode="json")
        directory.write_config(task.run, task.config)
        facts = _collect_facts(task, outcome, skipped)
        write_artefact(
            task.run,
            model,
            classes=splits.classes,
            golden=_golden_images(task, model.preprocess),
            calibration=calibration,
            card={"facts": facts, "result": result, "summaries": summaries},
        )
        rows = [
            row
            for split, outputs in outputs_by_split.items()
            for row in prediction_rows(
                split, outputs.names, outputs.logits, outputs.labels, splits.classes, calibration
            )
        ]
        write_predictions(task.run / PREDICTIONS, rows)
        write_summaries(task.run, {"facts": facts, "result": result}, summaries)
        mark_finished(task.run, result)
    model.labels, model.calibration = tuple(splits.classes), calibration
    return {**result, "story": outcome.notes}


def _describe_skipped(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    images = "1 unreadable image" if len(names) == 1 else f"{len(names):,} unreadable images"
    return f"Skipped {images}: {', '.join(names[:MAX_SHOWN])}{more}."


def _golden_images(task: Task, preprocess: Preprocess) -> UInt8[Tensor, "n Y X C"]:
    """The first validation images, without unreadable ones if `on_error` is `skip`."""
    reader, skips = Reader(preprocess), task.settings.on_error == "skip"

    def read_images() -> Iterator[Pixels]:
        for item in task.splits.val:
            with suppress(DataError) if skips else nullcontext():
                yield reader.read(item)

    return torch.from_numpy(np.stack(list(islice(read_images(), NUM_GOLDEN))))


def _is_finite(outputs: Outputs) -> bool:
    return len(outputs.logits) > 0 and bool(outputs.logits.isfinite().all())


def _score(summary: Summary | None, outputs: Outputs | None) -> dict[str, Any] | None:
    """The score of a split, as in result.json."""
    if outputs is None:
        return None
    if summary is None:  # outputs that are not finite count as wrong
        return {"map" if outputs.labels.ndim == 2 else "top1": 0.0, "n": len(outputs.logits), "interval": [0.0, 1.0]}
    if summary.map is not None and summary.map_interval is not None:
        return {"map": summary.map, "n": summary.n, "interval": list(summary.map_interval)}
    return {"top1": summary.top1, "n": summary.n, "interval": list(summary.interval)}


def _collect_facts(task: Task, outcome: Outcome, skipped: dict[str, str]) -> dict[str, Any]:
    """What the report and the model card show besides scores."""
    splits, model = task.splits, outcome.model
    findings = splits.findings
    num_skipped = sum(name in skipped for name in splits.train.names) if isinstance(splits.train, Table) else 0
    return {
        "title": task.run.resolve().name,
        "model": model.name,
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "classes": len(splits.classes),
        "multi_label": splits.multi_label,
        "num_train": len(splits.train) - num_skipped,
        "skipped": skipped,
        "own_validation": splits.val is splits.train,
        "command": task.config.get("command", ""),
        "machine": f"{num_cores()} core{'s' if num_cores() > 1 else ''} of {platform.machine()}",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "story": " ".join((splits.note, *outcome.notes)),
        "findings": None if findings is None else [list(each) for each in findings],
    }
