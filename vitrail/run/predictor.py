"""From images to predictions: labels, calibrated confidence, and the verdict "unknown"."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.calibration import Calibration
from vitrail.data.labels import NUM_IMAGENET, imagenet_classes
from vitrail.data.preparation import InputPreprocess
from vitrail.engine.exported import ExportedModel, ImageModel
from vitrail.errors import RunError, WeightsError, printable
from vitrail.percent import percent
from vitrail.run.predictions import SEPARATOR

TOP = 5


class Prediction(NamedTuple):
    """The prediction for one image."""

    label: str
    confidence: float
    unknown: bool
    """Whether the image is unlike those the model knows, so that its label means little."""
    top: tuple[tuple[str, float], ...]
    """The most likely labels with their probabilities."""
    labels: tuple[str, ...]
    """The label; for a multi-label model, all assigned labels, perhaps none."""

    @property
    def label_text(self) -> str:
        """The labels on one line, as in predictions.csv."""
        return SEPARATOR.join(self.labels)

    @property
    def cells(self) -> dict[str, object]:
        """The prediction as a row of a table, by column."""
        confidence, unknown = round(self.confidence, 6), str(self.unknown).lower()
        return {"label": self.label_text, "confidence": confidence, "unknown": unknown}

    @property
    def line(self) -> str:
        """The prediction as a line of the terminal."""
        label = printable(self.label_text) or "(none)"
        label = f"unknown ({label}?)" if self.unknown else label
        return f"{percent(self.confidence):>8}  {label:<32}"

    def document(self) -> dict[str, Any]:
        """The prediction as a JSON object."""
        return {
            "label": self.label,
            "labels": list(self.labels),
            "confidence": round(self.confidence, 6),
            "unknown": self.unknown,
            "top": [{"label": label, "confidence": round(probability, 6)} for label, probability in self.top],
        }


class Predictor:
    """A model with its labels and its calibration."""

    def __init__(self, model: ImageModel, *, top: int = TOP) -> None:
        self.model, self.labels = model, labels_of(model)
        self.calibration = calibration_of(model)
        self.top = min(top, len(self.labels))

    @torch.inference_mode()
    def __call__(self, images: Float[Tensor, "B C Y X"]) -> list[Prediction | None]:
        """Predict preprocessed images."""
        like = next(self.model.parameters(), None)  # an exported model exposes no parameters
        return self.interpret(self.model(images if like is None else images.to(like)).float().cpu())

    def interpret(self, logits: Float[Tensor, "B K"]) -> list[Prediction | None]:
        """Turn logits into predictions; None where they are not finite."""
        probabilities, unknown = self.calibration.probabilities(logits), self.calibration.unknown(logits)
        finite = probabilities.isfinite().all(dim=1)
        return [
            self._predict_one(row, bool(verdict)) if bool(valid) else None
            for row, verdict, valid in zip(probabilities, unknown, finite, strict=True)
        ]

    def _predict_one(self, probabilities: Float[Tensor, " K"], unknown: bool) -> Prediction:
        values, indices = probabilities.topk(self.top)
        top = tuple((self.labels[index], value) for index, value in zip(indices.tolist(), values.tolist(), strict=True))
        assigned = (top[0][0],)
        if self.calibration.multi_label:
            chosen = self.calibration.assign_labels(probabilities).nonzero()[:, 0].tolist()
            assigned = tuple(self.labels[index] for index in chosen)
        return Prediction(*top[0], unknown, top, assigned)


def require_classification(model: ImageModel, what: str) -> None:
    """Reject a run of another kind; `what` is what the user asked for."""
    if model.about.kind != "classification":
        raise RunError(
            f"{what} is for image classifiers.", got=f"a run of the kind {model.about.kind}.", hint="vitrail predict."
        )


def require_classifier(model: ImageModel) -> None:
    """Reject a model whose head has not been trained, unless it is the calibrated end of a run that learned nothing."""
    head = getattr(model, "head", None)  # exported models have been checked before
    empty = head is not None and not any(bool(parameter.any()) for parameter in head.parameters())
    if empty and not calibration_of(model).n:
        raise WeightsError(
            "these weights have no classifier.", got="a head of zeros, or none.", hint="fine-tuned weights, or a run."
        )


def input_preprocess(model: ImageModel) -> InputPreprocess:
    """How an image or a clip becomes the model's input."""
    return model.preprocess if model.TAKES == ("image",) else require_preprocess(model)


def require_preprocess(model: ImageModel) -> InputPreprocess:
    """The preprocessing of a model, whatever its modality; a model of several inputs has none."""
    if model.about.preprocess is None:
        raise RunError(
            "this model has several inputs.", got=f"{' and '.join(model.TAKES)}.", hint="tensors as its inputs."
        )
    return model.about.preprocess


def calibration_of(model: ImageModel) -> Calibration:
    """The calibration of a model; the identity for weights that do not come from a run."""
    return model.calibration


def labels_of(model: ImageModel) -> tuple[str, ...]:
    """The names of a model's classes: its own, ImageNet's if there are a thousand, else numbers."""
    if model.labels or isinstance(model, ExportedModel):
        return tuple(model.labels)
    num = model.spec.num_classes
    if num == NUM_IMAGENET:
        return tuple(each.name for each in imagenet_classes())
    return tuple(f"class {number}" for number in range(num))
