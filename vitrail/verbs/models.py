"""The catalogue with sizes and costs."""

from __future__ import annotations

from vitrail import catalogue
from vitrail.catalogue import ModelInfo


def models(pattern: str = "") -> list[ModelInfo]:
    """Describe the models whose name contains `pattern`, or the one model that it names."""
    return [catalogue.describe(name) for name in catalogue.list_models(pattern) or [pattern]]
