"""How outputs become probabilities, labels and the verdict "unknown": the calibration that travels with a model."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import AliasChoices, Field, NonNegativeInt
from torch import Tensor

from vitrail.spec import Probability, Spec

FALSE_ALARM_RATE = 0.05
COVERAGE = 0.9


class Calibration(Spec):
    """How logits become probabilities, labels and the verdict "unknown"."""

    temperature: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    """Divides the logits (Guo et al., arXiv 1706.04599)."""
    thresholds: Annotated[tuple[Probability, ...], Field(max_length=100_000)] = ()
    """For multi-label data: the probability from which each label is assigned; one half if empty."""
    limit: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The free energy above which an image is unknown (Liu et al., arXiv 2010.03759)."""
    false_alarms: Probability = FALSE_ALARM_RATE
    """The fraction of familiar images that are flagged as unknown."""
    n: NonNegativeInt = 0
    """Images that this was fitted on."""
    ece_before: Probability | None = None
    ece_after: Probability | None = None
    """The calibration error on those same images, so slightly optimistic."""
    half_width: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """For regression: the true number lies within this distance of the predicted one for `coverage` of the images."""
    coverage: Probability = COVERAGE
    multi_label: Annotated[bool, Field(validation_alias=AliasChoices("multi_label", "several"))] = False
    """Whether an image may have any number of labels; called `several` in older runs."""

    def probabilities(self, logits: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
        """Calibrated probabilities: a softmax over classes, or a sigmoid per label for multi-label data."""
        scaled = logits.float() / self.temperature
        return scaled.sigmoid() if self.multi_label else scaled.softmax(dim=1)

    def assign_labels(self, probabilities: Float[Tensor, " K"]) -> Bool[Tensor, " K"]:
        """Which labels an image of multi-label data gets."""
        return probabilities >= (torch.tensor(self.thresholds) if self.thresholds else 0.5)

    def unknown(self, logits: Float[Tensor, "n K"]) -> Bool[Tensor, " n"]:
        """Whether images are unlike those the model knows; always False without a limit."""
        if self.limit is None:
            return torch.zeros(len(logits), dtype=torch.bool)
        return free_energy(logits, multi_label=self.multi_label) > self.limit


def free_energy(logits: Float[Tensor, "n K"], *, multi_label: bool) -> Float[Tensor, " n"]:
    """Low if some class fits an image well, high if none does."""
    logits = logits.double()
    return -F.softplus(logits).sum(dim=1) if multi_label else -logits.logsumexp(dim=1)
