"""What a model's outputs mean: a temperature for its confidence, thresholds for labels, a limit for the unknown.

Learned from pictures that the model was not trained on, kept in the run as calibration.json, and used by every later
prediction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from pydantic import AliasChoices, Field, NonNegativeInt
from scipy.optimize import minimize_scalar
from torch import Tensor

from vitrail.errors import RunError, SpecError, brief
from vitrail.files import write_text
from vitrail.metric.calibration import calibration_error
from vitrail.spec import Spec

CALIBRATION = "calibration.json"
FALSE_ALARMS = 0.05
WIDTH = 1.0  # of the prior over the logarithm of the temperature: few pictures move it little
RANGE = (-4.0, 4.0)
LARGE = 10**7  # numbers for which single precision must do
Share = Annotated[float, Field(ge=0, le=1)]


class Calibration(Spec):
    """How logits become probabilities and verdicts."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """By which logits are divided (Guo et al., arXiv 1706.04599)."""
    thresholds: tuple[Share, ...] = ()
    """Of several labels: the probability from which each is given; one half where nothing is told."""
    limit: float | None = None
    """The free energy above which a picture is unlike those that the model knows (Liu et al., arXiv 2010.03759)."""
    false_alarms: Share = FALSE_ALARMS
    """The share of known pictures that are called unknown."""
    n: NonNegativeInt = 0
    """Pictures that this was learned from."""
    ece_before: Share | None = None
    ece_after: Share | None = None
    """The calibration error over those pictures, which is somewhat too good."""
    multi_label: Annotated[bool, Field(validation_alias=AliasChoices("multi_label", "several"))] = False
    """Whether each class is a yes-or-no question of its own; called `several` in older runs."""

    def probabilities(self, logits: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
        """What the logits mean."""
        scaled = logits.float() / self.temperature
        return scaled.sigmoid() if self.multi_label else scaled.softmax(dim=1)

    def given(self, odds: Float[Tensor, " K"]) -> Bool[Tensor, " K"]:
        """Which of several labels a picture is given."""
        return odds >= (torch.tensor(self.thresholds) if self.thresholds else 0.5)

    def unknown(self, logits: Float[Tensor, "n K"]) -> Bool[Tensor, " n"]:
        """Whether pictures are unlike what the model knows; never, where no limit was learned."""
        if self.limit is None:
            return torch.zeros(len(logits), dtype=torch.bool)
        return free_energy(logits, multi_label=self.multi_label) > self.limit


def free_energy(logits: Float[Tensor, "n K"], *, multi_label: bool) -> Float[Tensor, " n"]:
    """Low where some class is sure of a picture, high where none is."""
    logits = logits.double()
    return -F.softplus(logits).sum(dim=1) if multi_label else -logits.logsumexp(dim=1)


def calibrate(
    logits: Float[Tensor, "n K"], labels: Int64[Tensor, " n"] | Float[Tensor, "n K"], *, multi_label: bool = False
) -> Calibration:
    """Learn what outputs mean from pictures whose labels are known and that the model did not learn from."""
    num = len(logits)
    if not num or not bool(logits.isfinite().all()):
        return Calibration(multi_label=multi_label)
    exact = logits.double() if logits.numel() < LARGE else logits.float()
    loss_of = F.binary_cross_entropy_with_logits if multi_label else F.cross_entropy
    wanted = labels.to(exact) if multi_label else labels

    def loss(logarithm: float) -> float:
        mean = loss_of(exact / float(np.exp(logarithm)), wanted).item()
        return num * mean + logarithm**2 / (2 * WIDTH**2)

    temperature = float(np.exp(minimize_scalar(loss, bounds=RANGE, method="bounded", options={"xatol": 1e-3}).x))
    found = Calibration(
        temperature=temperature, multi_label=multi_label, n=num, limit=_limit(exact, multi_label=multi_label)
    )
    if multi_label:
        return found.override({"thresholds": _thresholds(found.probabilities(logits), labels)})
    before, after = (_ece(each.probabilities(logits), labels) for each in (Calibration(), found))
    return found.override({"ece_before": before, "ece_after": after})


def _limit(logits: Float[Tensor, "n K"], *, multi_label: bool) -> float | None:
    """The energy that a new picture of the same kind exceeds as often as false alarms are allowed.

    Of n pictures drawn from one source, a new one exceeds the k highest with the chance k / (n + 1), so k is taken
    between two of them; None where there are too few to say.
    """
    energies = free_energy(logits, multi_label=multi_label).numpy()
    if FALSE_ALARMS * (len(energies) + 1) < 1:
        return None
    return float(np.quantile(energies, 1 - FALSE_ALARMS, method="weibull"))


def _thresholds(odds: Float[Tensor, "n K"], labels: Float[Tensor, "n K"]) -> list[float]:
    """For each class the probability with the best F1; one half for a class that never, or always, occurs."""
    chosen = []
    for odd, truth in zip(odds.double().T, labels.bool().T, strict=True):
        order = odd.argsort(descending=True)
        right = truth[order].cumsum(dim=0).double()
        f1 = 2 * right / (torch.arange(1, len(odd) + 1) + truth.sum())
        best = int(f1.argmax())
        following = odd[order][best + 1].item() if best + 1 < len(odd) else 0.0
        sure = bool(truth.any()) and not bool(truth.all())
        chosen.append((odd[order][best].item() + following) / 2 if sure else 0.5)
    return chosen


def _ece(odds: Float[Tensor, "n K"], labels: Int64[Tensor, " n"]) -> float:
    sure, called = odds.double().max(dim=1)
    return calibration_error(sure.numpy(), (called == labels).numpy())


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Keep it in a run."""
    write_text(calibration.model_dump_json(indent=1) + "\n", path / CALIBRATION, RunError)


def check_thresholds(calibration: Calibration, num_classes: int, place: Path) -> Calibration:
    """Refuse what was learned of another set of classes."""
    if len(calibration.thresholds) not in (0, num_classes):
        got = f"{len(calibration.thresholds)} thresholds for {num_classes} classes."
        raise RunError(f"the calibration in {place} is not that of its model.", got=got, hint="training anew.")
    return calibration


def read_calibration(path: Path, *, multi_label: bool = False) -> Calibration:
    """That of a run; of one that was made without, outputs as they are, of which there may be `several` labels."""
    try:
        return Calibration.parse_yaml((path / CALIBRATION).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Calibration(multi_label=multi_label)
    except (OSError, ValueError, SpecError) as error:
        raise RunError(f"{path / CALIBRATION} cannot be read.", got=brief(error), hint="training anew.") from None
