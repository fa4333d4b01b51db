"""A teacher: any model that classifies the student's classes, with its own preprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.data.transform import Preprocess, RawPixels
from vitrail.engine.exported import ExportedModel, ImageModel
from vitrail.errors import WeightsError
from vitrail.run.predictor import calibration_of

MAX_SHOWN = 3  # classes in a message


class Teacher:
    """Maps a batch of the student's images to logits for its classes; not a module, so that nobody trains it."""

    def __init__(self, model: ImageModel, preprocess: Preprocess, classes: Sequence[str]) -> None:
        """`preprocess` and `classes` are the student's."""
        if not model.labels:
            raise WeightsError(
                "the teacher does not say which classes it knows.",
                got=f"a model without class names; the data has {len(classes)} classes.",
                hint="a run or an exported model, which name their classes; in Python, model.labels = [...].",
            )
        if calibration_of(model).multi_label:
            raise WeightsError(
                "the teacher predicts any number of labels per image.",
                got="a multi-label model.",
                hint="a teacher trained with one label per image.",
            )
        missing = [name for name in classes if name not in model.labels]
        if missing or len(model.labels) != len(classes):
            named = ", ".join(map(repr, missing[:MAX_SHOWN])) or "more than these"
            raise WeightsError(
                "the teacher has other classes than the data.",
                got=f"{len(model.labels)} classes; the data has {len(classes)}, of which it does not know {named}."
                if missing
                else f"{len(model.labels)} classes; the data has {len(classes)}.",
                hint="a teacher trained on the same classes, by name.",
            )
        theirs = model.preprocess
        if theirs.channels not in (preprocess.channels, 3):
            raise WeightsError(
                "the teacher cannot read the student's images.",
                got=f"images of {preprocess.channels} channels, and a teacher that takes {theirs.channels}.",
                hint="a student with as many channels: model.channels=1.",
            )
        self.model = model.eval()
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self.order = torch.tensor([model.labels.index(name) for name in classes])
        self.size, self.channels = theirs.size, theirs.channels
        self.mean, self.std = (_column(values) for values in (preprocess.mean, preprocess.std))
        self.their_mean, self.their_std = (_column(values) for values in (theirs.mean, theirs.std))
        self.raw = isinstance(model, ExportedModel)
        assert self.raw == isinstance(theirs, RawPixels)

    @torch.no_grad()
    def __call__(self, image: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B K"]:
        """The teacher's logits for images in the student's normalisation, in the student's order of classes."""
        device = image.device
        values = (image.float() * self.std.to(device) + self.mean.to(device)).clamp(0.0, 1.0)
        if tuple(values.shape[2:]) != tuple(self.size):
            values = F.interpolate(values, size=tuple(self.size), mode="bicubic", antialias=True).clamp(0.0, 1.0)
        values = values.expand(-1, self.channels, -1, -1)
        if self.raw:
            return self.model((values * 255).round().to(torch.uint8).cpu()).to(device)[:, self.order.to(device)]
        self.model.to(device)
        return self.model((values - self.their_mean.to(device)) / self.their_std.to(device))[:, self.order.to(device)]

    def __deepcopy__(self, memo: dict[int, Any]) -> Teacher:
        """A copy of a student has the same teacher."""
        return self


def _column(values: Sequence[float]) -> Float[Tensor, "C 1 1"]:
    return torch.tensor(values)[:, None, None]
