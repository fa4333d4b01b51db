"""Calibration: a temperature for confidence, thresholds for multi-label data, and a limit for unknown images.

Fitted on images that the model was not trained on, stored in the run as calibration.json, and applied to every later
prediction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from pydantic import Field, TypeAdapter
from scipy.optimize import minimize_scalar
from torch import Tensor

from vitrail.calibration import FALSE_ALARM_RATE, Calibration, free_energy
from vitrail.errors import RunError, SpecError
from vitrail.files import write_text
from vitrail.metric.calibration import calibration_error
from vitrail.run.directory import invalid, read_document

CALIBRATION = "calibration.json"
FIELDS: TypeAdapter[dict[str, Any]] = TypeAdapter(
    dict[str, Annotated[list[float], Field(max_length=100_000)] | float | bool | None]
)
PRIOR_STD = 1.0  # of the log-temperature, so that a few images move it little
LOG_TEMPERATURE_BOUNDS = (-4.0, 4.0)
MAX_DOUBLE = 10**7  # logits; single precision has to do for more


def calibrate(
    logits: Float[Tensor, "n K"], labels: Int64[Tensor, " n"] | Float[Tensor, "n K"], *, multi_label: bool = False
) -> Calibration:
    """Fit a calibration on labelled images that the model was not trained on."""
    num = len(logits)
    if not num or not bool(logits.isfinite().all()):
        return Calibration(multi_label=multi_label)
    precise = logits.double() if logits.numel() < MAX_DOUBLE else logits.float()
    criterion = F.binary_cross_entropy_with_logits if multi_label else F.cross_entropy
    targets = labels.to(precise) if multi_label else labels

    def loss(log_temperature: float) -> float:
        mean = criterion(precise / float(np.exp(log_temperature)), targets).item()
        return num * mean + log_temperature**2 / (2 * PRIOR_STD**2)

    best = minimize_scalar(loss, bounds=LOG_TEMPERATURE_BOUNDS, method="bounded", options={"xatol": 1e-3})
    fitted = Calibration(
        temperature=float(np.exp(best.x)),
        multi_label=multi_label,
        n=num,
        limit=_unknown_limit(precise, multi_label=multi_label),
    )
    if multi_label:
        return fitted.override({"thresholds": _best_thresholds(fitted.probabilities(logits), labels)})
    before, after = (_ece(each.probabilities(logits), labels) for each in (Calibration(), fitted))
    return fitted.override({"ece_before": before, "ece_after": after})


def _unknown_limit(logits: Float[Tensor, "n K"], *, multi_label: bool) -> float | None:
    """The energy that a new familiar image exceeds with the probability of a false alarm.

    A new image from the same source exceeds the k-th highest of n energies with probability k / (n + 1), so the limit
    is interpolated between two of them. None with too few images.
    """
    energies = free_energy(logits, multi_label=multi_label).numpy()
    if FALSE_ALARM_RATE * (len(energies) + 1) < 1:
        return None
    return float(np.quantile(energies, 1 - FALSE_ALARM_RATE, method="weibull"))


def _best_thresholds(probabilities: Float[Tensor, "n K"], labels: Float[Tensor, "n K"]) -> list[float]:
    """For each label the threshold with the best F1; one half for a label that never, or always, occurs."""
    thresholds = []
    for column, truth in zip(probabilities.double().T, labels.bool().T, strict=True):
        order = column.argsort(descending=True)
        num_correct = truth[order].cumsum(dim=0).double()
        f1 = 2 * num_correct / (torch.arange(1, len(column) + 1) + truth.sum())
        best = int(f1.argmax())
        following = column[order][best + 1].item() if best + 1 < len(column) else 0.0
        varies = bool(truth.any()) and not bool(truth.all())
        thresholds.append((column[order][best].item() + following) / 2 if varies else 0.5)
    return thresholds


def _ece(probabilities: Float[Tensor, "n K"], labels: Int64[Tensor, " n"]) -> float:
    confidence, predicted = probabilities.double().max(dim=1)
    return calibration_error(confidence.numpy(), (predicted == labels).numpy())


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Store a calibration in a run."""
    write_text(calibration.model_dump_json(indent=1) + "\n", path / CALIBRATION, RunError)


def check_thresholds(calibration: Calibration, num_classes: int, path: Path) -> Calibration:
    """Reject a calibration of a model with another number of classes."""
    if len(calibration.thresholds) not in (0, num_classes):
        got = f"{len(calibration.thresholds)} thresholds for {num_classes} classes."
        raise RunError(f"the calibration in {path} does not fit its model.", got=got, hint="training again.")
    return calibration


def read_calibration(path: Path, *, multi_label: bool = False) -> Calibration:
    """Read the calibration of a run; older runs have none, so their outputs stay as they are."""
    try:
        return Calibration.parse(read_document(path / CALIBRATION, FIELDS))
    except FileNotFoundError:
        return Calibration(multi_label=multi_label)
    except SpecError as error:
        raise invalid(path / CALIBRATION, ValueError(f"{error.wrong} {error.got}")) from None
