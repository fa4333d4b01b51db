"""What a model said to each picture that it was judged on: predictions.csv of a run, and the account of it.

A table that any program opens, from which runs are compared, pictures of mistakes are found again, and labels that are
probably wrong are told.
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

from vitrail.errors import RunError, brief
from vitrail.files import replacing, write_text
from vitrail.metric.paired import Paired, compare_hits
from vitrail.metric.summary import Summary, summarise
from vitrail.run.calibrate import Calibration

PREDICTIONS = "predictions.csv"
SUMMARY = "account.json"
BETWEEN = " | "  # several labels of a picture
SUSPICIOUS = 20.0  # times likelier than the label that was given
NEVER = 1e-9  # the least probability that is reckoned with


class PredictionRow(NamedTuple):
    """One picture: what it is said to be, and what the model says."""

    split: str
    path: str
    label: str
    predicted: str
    confidence: float
    given: float
    """The probability of the label that was given."""
    right: bool
    unknown: bool

    @property
    def ratio(self) -> float:
        """How many times likelier the predicted label is than the given one."""
        return max(self.confidence, NEVER) / max(self.given, NEVER)


def summary_of(
    logits: Float[Tensor, "n K"],
    truth: Int64[Tensor, " n"] | Float[Tensor, "n K"],
    labels: Sequence[str],
    calibration: Calibration,
) -> Summary:
    """Judge outputs, calibrated and as they are."""
    plain = Calibration(multi_label=calibration.multi_label)
    odds, uncalibrated = (each.probabilities(logits).double().numpy() for each in (calibration, plain))
    known = truth.bool().numpy() if calibration.multi_label else truth.numpy()
    return summarise(odds, known, labels, uncalibrated=uncalibrated, thresholds=calibration.thresholds)


def prediction_rows(
    split: str,
    names: Sequence[str],
    logits: Float[Tensor, "n K"],
    truth: Int64[Tensor, " n"] | Float[Tensor, "n K"],
    labels: Sequence[str],
    calibration: Calibration,
) -> list[PredictionRow]:
    """A row for each picture; of several labels, `right` asks whether exactly the picture's own are given."""
    odds, unknown = calibration.probabilities(logits), calibration.unknown(logits).tolist()
    told = _told_several if calibration.multi_label else _told_one
    return [
        PredictionRow(split, name, *told(odds[number], truth[number], labels, calibration), unknown[number])
        for number, name in enumerate(names)
    ]


def _told_one(
    odds: Float[Tensor, " K"], truth: Tensor, labels: Sequence[str], _: Calibration
) -> tuple[str, str, float, float, bool]:
    own, best = int(truth), int(odds.argmax())
    return labels[own], labels[best], odds[best].item(), odds[own].item(), own == best


def _told_several(
    odds: Float[Tensor, " K"], truth: Tensor, labels: Sequence[str], calibration: Calibration
) -> tuple[str, str, float, float, bool]:
    """Confidence is that in the one label, given or not, about which model and truth are least of one mind."""
    own, given = truth.bool(), calibration.given(odds)
    words = [BETWEEN.join(labels[place] for place in each.nonzero()[:, 0].tolist()) for each in (own, given)]
    least = torch.where(own, odds, 1 - odds).min().item()
    right = bool((own == given).all())
    return words[0], words[1], least if right else 1 - least, least, right


def suspects(rows: Iterable[PredictionRow]) -> list[PredictionRow]:
    """The pictures whose label is probably wrong, the clearest first: another is far likelier, and likelier than not.

    By the ratio and not the difference of the two probabilities: a model that takes one breed for another still leaves
    something to the right one, but next to nothing to a label that was given by mistake.
    """
    doubtful = (row for row in rows if not row.right and row.ratio >= SUSPICIOUS and row.confidence >= 0.5)
    return sorted(doubtful, key=lambda row: (-row.ratio, row.path))


def compare_rows(first: Sequence[PredictionRow], second: Sequence[PredictionRow]) -> Paired | None:
    """How much more often the second is right on the pictures that both were judged on; None if there are none.

    The same picture has the same split, path and label; one that is listed twice is paired in the order of the lists.
    """
    known, others = _by_name(first), _by_name(second)
    pairs = [(known[key], right) for key, right in others.items() if key in known]
    if not pairs:
        return None
    before, after = np.array(pairs).T
    return compare_hits(before, after)


def _by_name(rows: Sequence[PredictionRow]) -> dict[tuple[str, str, str, int], bool]:
    seen: Counter[tuple[str, str, str]] = Counter()
    found = {}
    for row in rows:
        name = row.split, row.path, row.label
        found[*name, seen[name]] = row.right
        seen[name] += 1
    return found


def write_predictions(path: Path, rows: Iterable[PredictionRow]) -> None:
    """Keep the table; whole, or not at all."""
    text = io.StringIO()
    # All in quotes: a carriage return in a name would else end a line for those who read it.
    table = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    table.writerow(PredictionRow._fields)
    for row in rows:
        table.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row])
    with replacing(path, RunError) as part:
        part.write_bytes(text.getvalue().encode("utf-8", "surrogateescape"))  # names need not be UTF-8


def read_predictions(path: Path) -> list[PredictionRow]:
    """The table of a run."""
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return [_row(cells) for cells in csv.DictReader(file)]
    except FileNotFoundError:
        raise RunError(
            f"{path} is not there.", got="a run of an earlier version.", hint="training anew, with another --run."
        ) from None
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise RunError(f"{path} cannot be read.", got=brief(error), hint="training anew, with another --run.") from None


def _row(cells: dict[str, str]) -> PredictionRow:
    split, path, label, predicted, *numbers = (cells[name] for name in PredictionRow._fields)
    sure, given = (float(word) for word in numbers[:2])
    right, unknown = ({"True": True, "False": False}[word] for word in numbers[2:])
    if not (math.isfinite(sure) and math.isfinite(given)):
        raise ValueError("a probability that is not finite")
    return PredictionRow(split, path, label, predicted, sure, given, right, unknown)


def write_summaries(path: Path, facts: dict[str, Any], summaries: dict[str, Summary]) -> None:
    """Keep the accounts of all splits beside other facts that the report tells."""
    document = {**facts, **{split: asdict(each) for split, each in summaries.items()}}
    write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", path / SUMMARY, RunError)
