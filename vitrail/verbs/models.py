"""The catalogue, counted."""

from __future__ import annotations

from vitrail import catalogue
from vitrail.catalogue import Entry
from vitrail.errors import unknown_name


def models(pattern: str = "") -> list[Entry]:
    """The models whose name contains `pattern`, or the one model that it names, with sizes and costs."""
    names = catalogue.list_models(pattern)
    if not names:
        try:
            return [catalogue.describe(pattern)]
        except Exception:
            raise unknown_name("model", pattern, catalogue.list_models(), more="Without a word, all are shown.") from None
    return [catalogue.describe(name) for name in names]
