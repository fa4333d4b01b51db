"""An image with a heatmap drawn over it."""

from __future__ import annotations

import numpy as np
from PIL import Image

from vitrail.inspection.explanation import Explanation

OPACITY = 0.7


def draw_overlay(explanation: Explanation, method: str, side: int) -> Image.Image:
    """The image, its longer side about `side` pixels, under the heatmap of the first class."""
    from matplotlib import colormaps  # takes half a second, needed only here

    image = resize_to_fit(Image.fromarray(explanation.image).convert("RGB"), side)
    width, height = image.size
    top, left, bottom, right = explanation.window
    box = tuple(round(value) for value in (left * width, top * height, right * width, bottom * height))
    heatmap = explanation.heatmaps[method][0]
    scaled = heatmap / max(float(heatmap.max()), 1e-30)
    size = (max(1, box[2] - box[0]), max(1, box[3] - box[1]))
    smooth = np.asarray(Image.fromarray(scaled.astype(np.float32)).resize(size, Image.Resampling.BILINEAR)).clip(0, 1)
    colours = Image.fromarray((colormaps["viridis"](smooth)[..., :3] * 255).astype(np.uint8))
    alpha = Image.fromarray((255 * OPACITY * (0.4 + 0.6 * smooth)).astype(np.uint8))
    image.paste(colours, (box[0], box[1]), alpha)
    return image


def resize_to_fit(image: Image.Image, side: int) -> Image.Image:
    """Resize an image so that its longer side is about `side` pixels; a very small one keeps square pixels."""
    factor = side // max(image.size)
    if factor > 1:
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    image.thumbnail((side, side))
    return image
