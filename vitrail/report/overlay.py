"""An image with a heat map of the evidence for one class."""

from __future__ import annotations

from vitrail.contract import Classifier
from vitrail.data.table import Content
from vitrail.errors import VitrailError
from vitrail.inspection.explanation import available_methods, explain_image
from vitrail.report.thumbnails import jpeg_data_url


def render_overlay(model: Classifier, content: Content, class_index: int, side: int) -> str:
    """Overlay the evidence for a class on an image, as a data URL; empty if the image cannot be explained."""
    method = available_methods(model)[0]
    if isinstance(content, bytes) and not content:
        return ""
    try:
        explanation = explain_image(model, content, classes=[class_index], methods=[method])
    except VitrailError:
        return ""
    return jpeg_data_url(explanation.overlay(method, side))
