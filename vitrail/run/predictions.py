"""The prediction for each evaluated image: predictions.csv of a run, and the scores computed from it.

Any program can open the table. It is used to compare runs, to find the images of errors, and to list labels that are
probably wrong.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitrail.calibration import Calibration
from vitrail.errors import RunError, brief
from vitrail.files import atomic_write, write_text
from vitrail.metric.paired import Paired, compare_hits
from vitrail.metric.summary import Summary, summarise
from vitrail.run.directory import check_table

PREDICTIONS = "predictions.csv"
SUMMARY = "account.json"
COLUMNS = ("split", "path", "label", "predicted", "confidence", "given", "right", "unknown")
SEPARATOR = " | "  # between the labels of one image
SUSPECT_RATIO = 20.0  # of the probabilities of the predicted and the true label
MIN_PROBABILITY = 1e-9  # avoids division by zero


class PredictionRow(NamedTuple):
    """One image: its label, and what the model predicts."""

    split: str
    path: str
    label: str
    predicted: str
    confidence: float
    true_label_probability: float
    """The column `given` of predictions.csv."""
    right: bool
    unknown: bool

    @property
    def ratio(self) -> float:
        """How many times more likely the predicted label is than the true one."""
        return max(self.confidence, MIN_PROBABILITY) / max(self.true_label_probability, MIN_PROBABILITY)


def summary_of(
    logits: Float[Tensor, "n K"],
    truth: Int64[Tensor, " n"] | Float[Tensor, "n K"],
    labels: Sequence[str],
    calibration: Calibration,
) -> Summary:
    """Score outputs, calibrated and uncalibrated."""
    identity = Calibration(multi_label=calibration.multi_label)
    probabilities, uncalibrated = (each.probabilities(logits).double().numpy() for each in (calibration, identity))
    targets = truth.bool().numpy() if calibration.multi_label else truth.numpy()
    return summarise(probabilities, targets, labels, uncalibrated=uncalibrated, thresholds=calibration.thresholds)


def prediction_rows(
    split: str,
    names: Sequence[str],
    logits: Float[Tensor, "n K"],
    truth: Int64[Tensor, " n"] | Float[Tensor, "n K"],
    labels: Sequence[str],
    calibration: Calibration,
) -> list[PredictionRow]:
    """A row for each image; a multi-label prediction is `right` if exactly the true labels are assigned."""
    probabilities, unknown = calibration.probabilities(logits), calibration.unknown(logits).tolist()
    cells = _multi_label_cells if calibration.multi_label else _single_label_cells
    return [
        PredictionRow(split, name, *cells(probabilities[row], truth[row], labels, calibration), unknown[row])
        for row, name in enumerate(names)
    ]


def _single_label_cells(
    probabilities: Float[Tensor, " K"], truth: Tensor, labels: Sequence[str], _: Calibration
) -> tuple[str, str, float, float, bool]:
    true, top = int(truth), int(probabilities.argmax())
    return labels[true], labels[top], probabilities[top].item(), probabilities[true].item(), true == top


def _multi_label_cells(
    probabilities: Float[Tensor, " K"], truth: Tensor, labels: Sequence[str], calibration: Calibration
) -> tuple[str, str, float, float, bool]:
    """Both probabilities refer to the one label, assigned or not, on which the model and the truth agree least."""
    true, assigned = truth.bool(), calibration.assign_labels(probabilities)
    texts = [SEPARATOR.join(labels[index] for index in each.nonzero()[:, 0].tolist()) for each in (true, assigned)]
    least = torch.where(true, probabilities, 1 - probabilities).min().item()
    right = bool((true == assigned).all())
    return texts[0], texts[1], least if right else 1 - least, least, right


def suspects(rows: Iterable[PredictionRow]) -> list[PredictionRow]:
    """The images whose label is probably wrong, clearest first: another is far more likely, and above one half.

    The criterion is the ratio of the two probabilities, not their difference: a model that confuses two breeds still
    gives the true one some probability, but gives next to none to a label assigned by mistake.
    """
    found = (row for row in rows if not row.right and row.ratio >= SUSPECT_RATIO and row.confidence >= 0.5)
    return sorted(found, key=lambda row: (-row.ratio, row.path))


def compare_rows(first: Sequence[PredictionRow], second: Sequence[PredictionRow]) -> Paired | None:
    """Compare two models on the images that both were evaluated on; None if there are none.

    The same image has the same split, path and label; repeated entries are paired in order.
    """
    hits, others = _hits_by_key(first), _hits_by_key(second)
    pairs = [(hits[key], right) for key, right in others.items() if key in hits]
    if not pairs:
        return None
    before, after = np.array(pairs).T
    return compare_hits(before, after)


def _hits_by_key(rows: Sequence[PredictionRow]) -> dict[tuple[str, str, str, int], bool]:
    repeats: Counter[tuple[str, str, str]] = Counter()
    hits = {}
    for row in rows:
        key = row.split, row.path, row.label
        hits[*key, repeats[key]] = row.right
        repeats[key] += 1
    return hits


def write_predictions(path: Path, rows: Iterable[PredictionRow]) -> None:
    """Write the table atomically."""
    text = io.StringIO()
    # Quote everything: a carriage return in a name would otherwise end the line for some readers.
    table = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    table.writerow(COLUMNS)
    for row in rows:
        table.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row])
    with atomic_write(path, RunError) as part:
        part.write_bytes(text.getvalue().encode("utf-8", "surrogateescape"))  # file names need not be UTF-8


def read_predictions(path: Path) -> list[PredictionRow]:
    """Read the table of a run."""
    check_table(path)
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return [_parse_row(cells) for cells in csv.DictReader(file)]
    except FileNotFoundError:
        raise RunError(
            f"{path} is missing.", got="a run of an earlier version.", hint="training again, with another --run."
        ) from None
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise RunError(
            f"{path} cannot be read.", got=brief(error), hint="training again, with another --run."
        ) from None


def _parse_row(cells: dict[str, str]) -> PredictionRow:
    split, path, label, predicted, *values = (cells[name] for name in COLUMNS)
    confidence, true_label_probability = (float(value) for value in values[:2])
    right, unknown = ({"True": True, "False": False}[value] for value in values[2:])
    if not (math.isfinite(confidence) and math.isfinite(true_label_probability)):
        raise ValueError("a probability that is not finite")
    return PredictionRow(split, path, label, predicted, confidence, true_label_probability, right, unknown)


def write_summaries(path: Path, facts: dict[str, Any], summaries: dict[str, Summary]) -> None:
    """Write the scores of all splits, with the other facts that the report shows, to account.json."""
    document = {**facts, **{split: asdict(each) for split, each in summaries.items()}}
    write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", path / SUMMARY, RunError)
