"""The classes of data as a model counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.labels import bind, imagenet_classes
from vitrail.data.table import Source, Table
from vitrail.errors import DataError
from vitrail.run.predictor import calibration_of, labels_of

SHOWN = 5  # classes that are named


def class_numbers(network: Any, source: Source, told: str) -> dict[str, int]:
    """The number by which a model knows each class of the data; `told` is what the user calls the model."""
    if isinstance(source, Table) and source.starts is not None and not calibration_of(network).multi_label:
        raise DataError(
            "this model gives one label a picture.",
            got="several labels a picture.",
            hint="a model trained on such data.",
        )
    labels = getattr(network, "labels", None)
    if not labels:
        return bind(_present(source), network.spec.num_classes)
    numbers = {label: number for number, label in enumerate(labels)}
    strange = [name for name in _present(source) if name not in numbers]
    if strange and tuple(labels) == tuple(each.name for each in imagenet_classes()):
        return bind(_present(source), len(labels))  # ImageNet's classes go by numbers and synsets too
    if strange:
        raise DataError(
            f"the data has classes that {told} does not know.",
            got=", ".join(map(repr, strange[:SHOWN]))
            + (f" and {len(strange) - SHOWN} more." if strange[SHOWN:] else "."),
            hint=f"the model's own: {', '.join(labels[:8])}{', ...' if len(labels) > 8 else ''}.",
        )
    return numbers


def truth_of(network: Any, numbers: dict[str, int], source: Source, labels: Tensor) -> Tensor:
    """The labels of the data as the model counts them; of a model of several, a yes or no for each."""
    places = torch.tensor([numbers.get(name, -1) for name in source.classes])
    if not calibration_of(network).multi_label:
        return places[labels]
    truth = torch.zeros(len(labels), len(labels_of(network)))
    if labels.ndim == 1:
        truth[torch.arange(len(labels)), places[labels]] = 1.0
    else:
        known = places >= 0
        truth[:, places[known]] = labels[:, known].float()
    return truth


def _present(source: Source) -> list[str]:
    """The classes that the pictures have; of shards, all that are named."""
    if isinstance(source, Table):
        return [source.classes[label] for label in np.unique(source.labels).tolist()]
    return list(source.classes)
