"""Classification: softmax cross-entropy for one label per image, binary cross-entropy for multi-label data."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail import contract
from vitrail.batch import Fields, apply_model
from vitrail.metric.ranking import mean_average_precision
from vitrail.metric.score import Metric, Score, fraction_error

TOP1 = Metric("top1", "accuracy", is_fraction=True)
MAP = Metric("map", "mean average precision", is_fraction=True)
TEMPERATURES = tuple(10 ** (power / 20) for power in range(-30, 21))
Labels = Int64[Tensor, " B"] | Float[Tensor, "B K"]
"""Class numbers, or a target per class: those of mixed images sum to one, multi-label ones are independent."""


class Classify(contract.Objective):
    """Cross-entropy; `weights` weights the classes."""

    READS = ("label",)
    METRIC = TOP1
    COMPARES = "calibrated loss"
    weights: Tensor | None

    def __init__(
        self, *, multi_label: bool = False, label_smoothing: float = 0.0, weights: Float[Tensor, " K"] | None = None
    ) -> None:
        super().__init__()
        self.multi_label, self.label_smoothing = multi_label, label_smoothing
        self.register_buffer("weights", weights, persistent=False)  # computed from the data, so not in checkpoints

    @property
    def metric(self) -> Metric:
        """Accuracy, or mean average precision if multi-label."""
        return MAP if self.multi_label else TOP1

    def forward(self, model: nn.Module, fields: Fields) -> Float[Tensor, " B"]:
        return self.losses(apply_model(model, fields).float(), fields["label"])

    def losses(self, logits: Float[Tensor, "B K"], labels: Labels) -> Float[Tensor, " B"]:
        """Compute the loss of each image from its logits."""
        if not self.multi_label:
            return F.cross_entropy(
                logits, labels, weight=self.weights, label_smoothing=self.label_smoothing, reduction="none"
            )
        targets = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses = F.binary_cross_entropy_with_logits(logits, targets, weight=self.weights, reduction="none")
        return losses.mean(dim=1)

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """Compute the logits; keep the labels, if there are any."""
        return self.interpret(apply_model(model, fields), fields)

    def interpret(self, outputs: Float[Tensor, "B K"], fields: Fields) -> Fields:
        """Turn a model's outputs into answers."""
        return {"logits": outputs.float(), **{name: fields[name] for name in self.READS if name in fields}}

    def score(self, answers: Fields) -> Score:
        """Score logits by accuracy, or by mean average precision if multi-label, without smoothing and weights."""
        logits, labels = answers["logits"], answers["label"]
        num = len(logits)
        if not num or not bool(logits.isfinite().all()):
            return Score(self.metric, 0.0, 0.0, math.nan, num)
        loss = Classify(multi_label=self.multi_label).losses(logits, labels).double().mean().item()
        if self.multi_label:
            value = mean_average_precision(logits.numpy(), labels.bool().numpy())
        else:
            value = (logits.argmax(dim=1) == labels).double().mean().item()
        return Score(self.metric, value, fraction_error(value, num), loss, num)

    def sample_losses(self, answers: Fields) -> Float[Tensor, " n"]:
        """The loss of each image at the best temperature, so that under- or overconfidence does not count."""
        return calibrated_losses(answers["logits"], answers["label"], multi_label=self.multi_label)


def calibrated_losses(logits: Float[Tensor, "n K"], labels: Labels, *, multi_label: bool) -> Float[Tensor, " n"]:
    """The loss of each image at the best temperature."""
    objective = Classify(multi_label=multi_label)
    candidates = [objective.losses(logits / temperature, labels).double() for temperature in TEMPERATURES]
    return min(candidates, key=lambda losses: losses.mean().item())


def class_weights(counts: Int64[Tensor, " K"]) -> Float[Tensor, " K"]:
    """Weight each class inversely to its frequency, with a mean of one over the images.

    A class without images gets a weight of one.
    """
    present = counts > 0
    weights = torch.ones(len(counts))
    weights[present] = counts.sum() / (present.sum() * counts[present]).float()
    return weights


Objective = Classify
