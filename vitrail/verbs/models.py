"""The catalogue, counted."""

from __future__ import annotations

from vitrail import catalogue
from vitrail.catalogue import Entry


def models(pattern: str = "") -> list[Entry]:
    """The models whose name contains `pattern`, or the one model that it names, with sizes and costs."""
    return [catalogue.describe(name) for name in catalogue.list_models(pattern) or [pattern]]
