"""Classification: softmax cross-entropy for one label per image, binary cross-entropy for multi-label data."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn


class Classify(nn.Module):
    """The loss of each image of a batch.

    Labels are class numbers, or a target per class: targets of mixed images sum to one, multi-label targets are
    independent. `weights` weights the classes.
    """

    weights: Tensor | None

    def __init__(
        self, *, multi_label: bool = False, label_smoothing: float = 0.0, weights: Float[Tensor, " K"] | None = None
    ) -> None:
        super().__init__()
        self.multi_label, self.label_smoothing = multi_label, label_smoothing
        self.register_buffer("weights", weights)

    def forward(
        self, model: nn.Module, images: Float[Tensor, "B C Y X"], labels: Int64[Tensor, " B"] | Float[Tensor, "B K"]
    ) -> Float[Tensor, " B"]:
        return self.losses(model(images).float(), labels)

    def losses(
        self, logits: Float[Tensor, "B K"], labels: Int64[Tensor, " B"] | Float[Tensor, "B K"]
    ) -> Float[Tensor, " B"]:
        """Compute the loss of each image from its logits."""
        if not self.multi_label:
            return F.cross_entropy(
                logits, labels, weight=self.weights, label_smoothing=self.label_smoothing, reduction="none"
            )
        targets = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses = F.binary_cross_entropy_with_logits(logits, targets, weight=self.weights, reduction="none")
        return losses.mean(dim=1)


def class_weights(counts: Int64[Tensor, " K"]) -> Float[Tensor, " K"]:
    """Weight each class inversely to its frequency, with a mean of one over the images.

    A class without images gets a weight of one.
    """
    present = counts > 0
    weights = torch.ones(len(counts))
    weights[present] = counts.sum() / (present.sum() * counts[present]).float()
    return weights
