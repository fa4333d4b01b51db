"""An explained picture with one map laid over it."""

from __future__ import annotations

import numpy as np
from PIL import Image

from vitrail.inspection.explanation import Explanation

STRENGTH = 0.7


def lay_over(found: Explanation, method: str, side: int) -> Image.Image:
    """The picture, its longer side about so many pixels, with the map of the first class over it."""
    from matplotlib import colormaps  # half a second, which who explains nothing need not wait for

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
    return picture


def fitted(image: Image.Image, side: int) -> Image.Image:
    """A picture whose longer side is about `side` pixels; the pixels of a very small one stay squares."""
    times = side // max(image.size)
    if times > 1:
        return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    image.thumbnail((side, side))
    return image
