"""Map the classes of a data set to the outputs of a model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.data.labels import NUM_IMAGENET, bind, imagenet_classes
from vitrail.data.table import Source, Table
from vitrail.engine.exported import ImageModel
from vitrail.errors import DataError, UnknownNameError
from vitrail.run.predictor import calibration_of, labels_of

MAX_NAMED = 5  # classes in an error message


def map_classes(network: ImageModel, source: Source, model: str) -> dict[str, int]:
    """The model's class index of each class name; `model` is what the user calls the model."""
    if source.multi_label and not calibration_of(network).multi_label:
        raise DataError(
            "this model predicts one label per image.", got="multi-label data.", hint="a model trained on such data."
        )
    labels = network.labels
    if not labels:
        return bind(_present_classes(source), len(labels_of(network)))
    indices = {label: index for index, label in enumerate(labels)}
    unknown = [name for name in _present_classes(source) if name not in indices]
    if unknown and tuple(labels) == tuple(each.name for each in imagenet_classes()):
        return bind(_present_classes(source), len(labels))  # ImageNet classes may go by index or synset too
    if unknown:
        raise DataError(
            f"the data has classes that {model} does not know.",
            got=", ".join(map(repr, unknown[:MAX_NAMED]))
            + (f" and {len(unknown) - MAX_NAMED} more." if unknown[MAX_NAMED:] else "."),
            hint=f"the model's classes: {', '.join(labels[:8])}{', ...' if len(labels) > 8 else ''}.",
        )
    return indices


def imagenet_numbers(network: ImageModel) -> list[int]:
    """ImageNet's number of each class of a model that has ImageNet's classes or some of them, by their names."""
    labels, num_classes = network.labels, len(labels_of(network))
    if not labels and num_classes == NUM_IMAGENET:
        return list(range(NUM_IMAGENET))
    foreign = next((label for label in labels if not _is_imagenet_class(label, len(labels))), None)
    if not labels or foreign is not None:
        raise DataError(
            "ReaL labels need a model with ImageNet's classes.",
            got=f"{foreign!r}." if labels else f"a model with {num_classes} classes without names.",
            hint="evaluating without --real.",
        )
    numbers = bind(labels, NUM_IMAGENET)
    return [numbers[label] for label in labels]


def _is_imagenet_class(label: str, num_classes: int) -> bool:
    if label.isdecimal():  # the folder of a class may be named by its number, but so are digits
        return num_classes == NUM_IMAGENET
    try:
        return bool(bind([label], NUM_IMAGENET))
    except (DataError, UnknownNameError):
        return False


def map_labels(network: ImageModel, indices: dict[str, int], source: Source, labels: Tensor) -> Tensor:
    """The labels of the data as the model's class indices; for a multi-label model, as one 0 or 1 per class."""
    targets = torch.tensor([indices.get(name, -1) for name in source.classes])
    if not calibration_of(network).multi_label:
        return targets[labels]
    truth = torch.zeros(len(labels), len(labels_of(network)))
    if labels.ndim == 1:
        truth[torch.arange(len(labels)), targets[labels]] = 1.0
    else:
        known = targets >= 0
        truth[:, targets[known]] = labels[:, known].float()
    return truth


def _present_classes(source: Source) -> list[str]:
    """The classes that occur in the data; for shards, all that are named."""
    if isinstance(source, Table):
        return [source.classes[label] for label in np.unique(source.labels).tolist()]
    return list(source.classes)
