"""A picture with the map of what spoke for a class laid over it."""

from __future__ import annotations

from typing import Any

from vitrail.data.table import Content
from vitrail.errors import VitrailError
from vitrail.inspection.explanation import able_methods, explain
from vitrail.report.thumbnails import jpeg


def overlay(model: Any, content: Content, number: int, side: int) -> str:
    """What spoke for the class of this number, as a data address; empty if the picture or the map cannot be shown."""
    method = able_methods(model)[0]
    if isinstance(content, bytes) and not content:
        return ""
    try:
        found = explain(model, content, classes=[number], methods=[method])
    except VitrailError:
        return ""
    return jpeg(found.laid_over(method, side))
