"""Telling classes apart: cross-entropy for one label a picture, a yes or no for each class where there are several."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn


class Classify(nn.Module):
    """The loss of each picture of a batch.

    Labels are class numbers, or shares of each class: of mixed pictures they sum to one, and with `several` labels a
    picture each is a question of its own. `weights` counts some classes for more than others.
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
        """The losses of pictures whose logits are known."""
        if not self.multi_label:
            return F.cross_entropy(
                logits, labels, weight=self.weights, label_smoothing=self.label_smoothing, reduction="none"
            )
        smooth = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        each = F.binary_cross_entropy_with_logits(logits, smooth, weight=self.weights, reduction="none")
        return each.mean(dim=1)


def class_weights(counts: Int64[Tensor, " K"]) -> Float[Tensor, " K"]:
    """A weight for each class, inverse to how often it occurs and one for the average picture.

    A class that does not occur has no pictures to be weighted, so it is left at one.
    """
    present = counts > 0
    weights = torch.ones(len(counts))
    weights[present] = counts.sum() / (present.sum() * counts[present]).float()
    return weights
