"""Regression: a number for each image, by the Huber loss (Huber 1964) of standardised numbers.

The model predicts the number in units of its standard deviation, so that the learning rate need not know whether it is
an age or a price. `fold_into` rescales the head at the end: the finished model predicts the number itself.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import contract
from vitrail.batch import Fields, apply_model
from vitrail.metric.score import Metric, Score

MAE = Metric("mae", "mean absolute error", higher=False)


class Regress(contract.Objective):
    """The Huber loss; `mean` and `std` are those of the training data."""

    READS = ("label",)
    METRIC = MAE
    COMPARES = "absolute error"

    def __init__(self, *, mean: float = 0.0, std: float = 1.0) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, model: nn.Module, fields: Fields) -> Float[Tensor, " B"]:
        predicted = apply_model(model, fields).float()[:, 0]
        return F.smooth_l1_loss(predicted, self.standardise(fields["label"]).float(), reduction="none")

    def standardise(self, numbers: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The numbers with mean 0 and standard deviation 1."""
        return (numbers - self.mean) / self.std

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """Compute the numbers; keep the true ones, if there are any."""
        return self.interpret(apply_model(model, fields), fields)

    def interpret(self, outputs: Float[Tensor, "B 1"], fields: Fields) -> Fields:
        """Turn a model's outputs into answers."""
        predicted = outputs.float()[:, 0] * self.std + self.mean
        return {"number": predicted, **{name: fields[name] for name in self.READS if name in fields}}

    def score(self, answers: Fields) -> Score:
        """Score by the mean absolute error."""
        errors = self.sample_losses(answers)
        num = len(errors)
        if not num or not bool(errors.isfinite().all()):
            return Score(MAE, math.inf, 0.0, math.nan, num)
        predicted, true = (self.standardise(answers[name].double()) for name in ("number", "label"))
        loss = F.smooth_l1_loss(predicted, true).item()
        error = errors.std().item() / math.sqrt(num) if num > 1 else math.inf
        return Score(MAE, errors.mean().item(), error, loss, num)

    def sample_losses(self, answers: Fields) -> Float[Tensor, " n"]:
        """The absolute error of each image."""
        return (answers["number"].double() - answers["label"].double()).abs()

    @torch.no_grad()
    def fold_into(self, heads: tuple[nn.Module, ...]) -> None:
        """Rescale the heads of a trained model, so that it predicts the number itself."""
        for head in heads:
            for name, parameter in head.named_parameters():
                parameter.mul_(self.std)
                if name.endswith("bias"):
                    parameter.add_(self.mean)


Objective = Regress
