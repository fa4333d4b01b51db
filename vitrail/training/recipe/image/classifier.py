"""The model of a task on images is a classifier."""

from __future__ import annotations

from vitrail.contract import Classifier, Model


def as_classifier(model: Model) -> Classifier:
    """Return the model as what it is."""
    assert isinstance(model, Classifier), f"a recipe for images got a {type(model).__name__}"
    return model
