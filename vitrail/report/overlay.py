"""A picture with the map of what spoke for a class laid over it."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.table import Content
from vitrail.errors import VitrailError
from vitrail.inspection import trace
from vitrail.inspection.explanation import explain
from vitrail.report.album import fitted, jpeg

STRENGTH = 0.7


def overlay(model: Any, content: Content, number: int, side: int) -> str:
    """What spoke for the class of this number, as a data address; empty if the picture or the map cannot be shown."""
    from matplotlib import colormaps  # half a second, which a run without mistakes need not wait for

    method = "relevance" if trace.has_attention(model) else "gradcam"
    if isinstance(content, bytes) and not content:
        return ""
    try:
        found = explain(model, content, classes=[number], methods=[method])
    except VitrailError:
        return ""
    picture = fitted(Image.fromarray(found.picture).convert("RGB"), side)
    width, height = picture.size
    top, left, bottom, right = found.window
    box = tuple(round(value) for value in (left * width, top * height, right * width, bottom * height))
    heat = found.heat[method][0]
    share = heat / max(float(heat.max()), 1e-30)
    size = (max(1, box[2] - box[0]), max(1, box[3] - box[1]))
    smooth = np.asarray(Image.fromarray(share.astype(np.float32)).resize(size, Image.Resampling.BILINEAR)).clip(0, 1)
    colours = Image.fromarray((colormaps["viridis"](smooth)[..., :3] * 255).astype(np.uint8))
    opacity = Image.fromarray((255 * STRENGTH * (0.4 + 0.6 * smooth)).astype(np.uint8))
    picture.paste(colours, (box[0], box[1]), opacity)
    return jpeg(picture)
