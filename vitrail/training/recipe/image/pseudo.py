"""Pseudo-labels: what a model predicts for images without labels, where it is confident (Noisy Student)."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.contract import Classifier
from vitrail.data.cache import digest
from vitrail.data.rng import make_rng
from vitrail.data.table import Content, Source, Table
from vitrail.errors import DataError
from vitrail.percent import percent
from vitrail.run.calibrate import calibrate
from vitrail.training.evaluation import Answers
from vitrail.training.task import Task

LABEL_SHARE = 0.15  # of the time that is left, to label images
NUM_TIMED = 128  # images, to see how fast that is


class PseudoLabelled(NamedTuple):
    """The images that were labelled; how many there are, and how many labels should be right, in words."""

    table: Table
    note: str


def check_tables(labelled: Source, unlabelled: Source | None) -> tuple[Table, Table]:
    """Return both, as tables; refuse data that pseudo-labels are no use for."""
    if not isinstance(labelled, Table) or not isinstance(unlabelled, Table):
        raise DataError("unlabelled images need random access.", got="shards.", hint="a folder or a table.")
    if labelled.multi_label or labelled.values is not None:
        raise DataError(
            "unlabelled images are for data with one label per image.",
            got="multi-label data." if labelled.multi_label else "numbers to predict.",
            hint="the command without --unlabelled, or --recipe pretrain first.",
        )
    if labelled.modalities != unlabelled.modalities:
        raise DataError(
            "the unlabelled data is of another kind than the labelled data.",
            got=f"{unlabelled.modalities[0]}s beside {labelled.modalities[0]}s.",
            hint=f"--unlabelled with {labelled.modalities[0]}s.",
        )
    return labelled, unlabelled


def label_images(
    task: Task, model: Classifier, val: Answers, unlabelled: Table, *, confidence: float, soft: bool, number: int = 1
) -> PseudoLabelled | None:
    """Label the images that the model is confident about, equally many of each class; None if there are none.

    Confidence is calibrated on the answers `val` for validation images. Images that cannot be read are skipped, and
    copies of validation and test images are left out, because students are compared on these. `number` is that of the
    student.
    """
    classes = task.splits.train.classes
    blind = without_labels(unlabelled)
    task = replace(task, settings=task.settings.override({"on_error": "skip"}))
    blind = blind.only(sample_rows(task, model, blind, number))
    answers = task.infer(model, blind, "Labelling")
    calibration = calibrate(val["logits"], val["label"])
    probabilities = calibration.probabilities(answers["logits"]).float().numpy()
    chosen = choose_rows(probabilities, confidence)
    num_chosen, held_out = len(chosen), held_out_contents(task)
    rows = answers.indices.numpy()
    is_new = [content_key(blind.content(int(rows[row]))) not in held_out for row in chosen]
    chosen = chosen[np.array(is_new, dtype=bool)]
    if not len(chosen):
        return None
    table = replace(
        blind.only(rows[chosen]),
        classes=classes,
        labels=probabilities[chosen].argmax(axis=1).astype(np.int32),
        targets=probabilities[chosen] if soft else None,
    )
    present = len(np.unique(table.labels))
    asked = f"{len(blind):,} {task.kind.NOUN}"
    if len(blind) < len(unlabelled):
        asked += f" (as many of the {len(unlabelled):,} as the minutes allow)"
    copies, unread = num_chosen - len(chosen), len(blind) - answers.num
    asked += f", {unread:,} of them unreadable" if unread else ""
    asked += f" (without {copies:,} that are used for validation or testing)" if copies else ""
    note = f"{len(chosen):,} of {asked} labelled with a confidence of {percent(confidence, 0)} or more"
    note += f", of {present} of {len(classes)} classes" if present < len(classes) else ""
    expected = float(probabilities[chosen].max(axis=1).mean())  # what calibrated confidence means
    return PseudoLabelled(table, f"{note}, {percent(expected, 0)} of them expected to be right")


def content_key(content: Content) -> bytes:
    """A hash of an image; of a clip, which is not read as a whole, its path."""
    return os.fsencode(content.resolve()) if isinstance(content, Path) else digest(content)


def held_out_contents(task: Task) -> set[bytes]:
    """The content keys of all validation and test images that can be read."""
    found: set[bytes] = set()
    for source in (task.splits.val, task.splits.test):
        for item in source or ():
            with suppress(DataError):
                found.add(content_key(item.content()))
    return found


def sample_rows(task: Task, model: Classifier, table: Table, number: int) -> list[int]:
    """The rows to label, in order: all of them, or as many random ones as the minutes leave time for."""
    order = make_rng("order", seed=task.settings.seed, epoch=3).permutation(len(table))
    left = task.seconds_left()
    if left is None:
        return list(range(len(table)))
    tried = table.only(order[:NUM_TIMED].tolist())
    began = time.monotonic()
    task.infer(model, tried, "Labelling")
    num = int(LABEL_SHARE * left * len(tried) / (time.monotonic() - began))
    key = "num_labelled" if number == 1 else f"num_labelled_{number}"
    return sorted(order[: task.decide(key, lambda: max(1, min(len(table), num)))].tolist())


def without_labels(table: Table, classes: tuple[str, ...] = ()) -> Table:
    """The same images with no labels; or, where the classes are needed and labels are not read, with the first."""
    return replace(
        table, classes=classes, labels=np.zeros(len(table), dtype=np.int32), starts=None, values=None, targets=None
    )


def choose_rows(probabilities: NDArray[np.float32], confidence: float) -> NDArray[np.int64]:
    """The rows with a confident prediction, sorted; of a class with more than its share, the most confident ones."""
    labels, best = probabilities.argmax(axis=1), probabilities.max(axis=1)
    confident = np.flatnonzero(best >= confidence)
    share = -(-len(confident) // probabilities.shape[1])
    order = confident[np.argsort(-best[confident], kind="stable")]
    parts = [order[labels[order] == label][:share] for label in range(probabilities.shape[1])]
    return np.sort(np.concatenate(parts))
