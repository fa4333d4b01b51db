"""The one preprocessing: resize, crop, scale, the same for every verb that shows a picture to a model."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from pydantic import Field, PositiveFloat
from torch import Tensor

from vitrail.spec import Pair, Spec

MAX_COVER = 16_000_000  # pixels of a picture enlarged to be cropped
KERNELS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "nearest": Image.Resampling.NEAREST,
}


class Preprocess(Spec):
    """How a picture becomes the tensor that a model was trained on."""

    size: Pair = (224, 224)
    resize: Literal["cover", "squash"] = "cover"
    """`cover` keeps the aspect ratio and crops what stands over, `squash` does not."""
    kernel: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    crop: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """The part of the covered picture that is kept: 224 of 248 pixels is 0.9."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.5, 0.5, 0.5)

    def pixels(self, image: Image.Image) -> Image.Image:
        """The resized and cropped picture, still in 8 bits."""
        rows, columns = self.size
        if self.resize == "squash":
            return image.resize((columns, rows), KERNELS[self.kernel])
        # The short side first and the other from it, rounded down, as timm and torchvision do.
        cover_rows, cover_columns = math.floor(rows / self.crop), math.floor(columns / self.crop)
        width, height = image.size
        if cover_columns * height >= cover_rows * width:
            width, height = cover_columns, max(cover_rows, cover_columns * height // width)
        else:
            width, height = max(cover_columns, cover_rows * width // height), cover_rows
        left, top = round((width - columns) / 2), round((height - rows) / 2)
        if width * height > MAX_COVER:
            # A picture of 16,384 x 1 would fill the memory: only the part that is kept is computed. Pillow then
            # rounds some pixels differently, so that others get the peers' way, whole and then cropped.
            x, y = image.width / width, image.height / height
            box = (left * x, top * y, (left + columns) * x, (top + rows) * y)
            return image.resize((columns, rows), KERNELS[self.kernel], box=box)
        image = image.resize((width, height), KERNELS[self.kernel])
        return image.crop((left, top, left + columns, top + rows))

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 Y X"]:
        pixels = np.asarray(self.pixels(image), dtype=np.uint8)
        tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div_(255.0)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return tensor.sub_(mean).div_(std)
