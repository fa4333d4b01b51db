"""The outputs of a model as they are: features, from a model without a head."""

from __future__ import annotations

from torch import Tensor, nn

from vitrail.batch import Fields, apply_model
from vitrail.contract import Objective
from vitrail.objective.regress import Regress


class Features(Objective):
    """Keeps the outputs of a model, and the labels."""

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """Compute the outputs."""
        return {"features": apply_model(model, fields).float(), "label": fields["label"]}


def linear_targets(objective: Objective, labels: Tensor) -> Tensor:
    """The labels that a linear model is fitted to: standardised, if they are numbers."""
    return objective.standardise(labels) if isinstance(objective, Regress) else labels
