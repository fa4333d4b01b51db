"""A model with what its outputs mean: labels, calibrated confidence, and the verdict "unknown"."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.labels import NUM_IMAGENET, imagenet_classes
from vitrail.errors import WeightsError
from vitrail.run.calibrate import Calibration
from vitrail.run.predictions import BETWEEN

TOP = 5


class Prediction(NamedTuple):
    """What a model says to a picture."""

    label: str
    confidence: float
    unknown: bool
    """Whether the picture is unlike those that the model knows, so that its label means little."""
    top: tuple[tuple[str, float], ...]
    """The likeliest labels with their probabilities."""
    labels: tuple[str, ...]
    """The label; of a model of several labels all that are given, perhaps none."""

    @property
    def words(self) -> str:
        """The labels in one line, as predictions.csv has them."""
        return BETWEEN.join(self.labels)

    def document(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {
            "label": self.label,
            "labels": list(self.labels),
            "confidence": round(self.confidence, 6),
            "unknown": self.unknown,
            "top": [{"label": label, "confidence": round(odds, 6)} for label, odds in self.top],
        }


class Predictor:
    """What a model says, in words."""

    def __init__(self, model: Any, *, top: int = TOP) -> None:
        self.model, self.labels = model, labels_of(model)
        self.calibration = calibration_of(model)
        self.top = min(top, len(self.labels))

    @torch.inference_mode()
    def __call__(self, images: Float[Tensor, "B C Y X"]) -> list[Prediction | None]:
        """Look at prepared pictures."""
        like = next(self.model.parameters(), None)  # an exported model has none that can be seen
        return self.told(self.model(images if like is None else images.to(like)).float().cpu())

    def told(self, logits: Float[Tensor, "B K"]) -> list[Prediction | None]:
        """What logits mean; nothing, where they are not finite."""
        odds, unknown = self.calibration.probabilities(logits), self.calibration.unknown(logits)
        sound = odds.isfinite().all(dim=1)
        return [
            self._one(row, bool(verdict)) if bool(finite) else None
            for row, verdict, finite in zip(odds, unknown, sound, strict=True)
        ]

    def _one(self, odds: Float[Tensor, " K"], unknown: bool) -> Prediction:
        values, numbers = odds.topk(self.top)
        top = tuple(
            (self.labels[number], value) for number, value in zip(numbers.tolist(), values.tolist(), strict=True)
        )
        given = (top[0][0],)
        if self.calibration.multi_label:
            given = tuple(self.labels[place] for place in self.calibration.given(odds).nonzero()[:, 0].tolist())
        return Prediction(*top[0], unknown, top, given)


def require_classifier(model: Any) -> None:
    """Refuse a model whose head has not been trained."""
    head = getattr(model, "head", None)  # what was exported had one
    if head is not None and not any(bool(parameter.any()) for parameter in head.parameters()):
        raise WeightsError(
            "these weights have no classifier.", got="a head of zeros, or none.", hint="fine-tuned weights, or a run."
        )


def calibration_of(model: Any) -> Calibration:
    """What was learned of a model's outputs; nothing, of one that is no run's."""
    return getattr(model, "calibration", Calibration())


def labels_of(model: Any) -> tuple[str, ...]:
    """The names of a model's classes: its own, ImageNet's if there are a thousand, else numbers."""
    own = getattr(model, "labels", None)
    if own:
        return tuple(own)
    num = model.spec.num_classes
    if num == NUM_IMAGENET:
        return tuple(each.name for each in imagenet_classes())
    return tuple(f"class {number}" for number in range(num))
