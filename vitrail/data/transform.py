"""The one preprocessing (resize, crop, normalise), the same for every verb that shows an image to a model."""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated, Literal, Self

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from vitrail.data.decode import Mode, Pixels, as_pixels, decode_image, orient_image, orientation_of, to_rgb
from vitrail.data.resize import Kernel, resize_part
from vitrail.spec import Size2d, Spec

MAX_PIXELS = 2**24  # of a resized image: 4,096 x 4,096
Byte = Annotated[int, Field(ge=0, le=255)]


@cache
def _row(values: tuple[float, ...], columns: int) -> Float[np.ndarray, " X*C"]:
    """One value per channel, repeated for every pixel of a row."""
    return np.tile(np.array(values, dtype=np.float32), columns)


class Preprocess(Spec):
    """How an image becomes the tensor that a model was trained on."""

    size: Size2d = (224, 224)
    resize: Literal["cover", "squash"] = "cover"
    """`cover` keeps the aspect ratio and crops the rest; `squash` ignores the aspect ratio."""
    kernel: Kernel = "bicubic"
    crop: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """The fraction of the resized image that is kept: 224 of 248 pixels is 0.9."""
    mean: tuple[float, float, float] | tuple[float] = (0.5, 0.5, 0.5)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | tuple[PositiveFloat] = (0.5, 0.5, 0.5)
    mode: Mode = "rgb"
    """`rgb` for three channels, `grey` for one."""
    background: tuple[Byte, Byte, Byte] = (255, 255, 255)
    """The colour behind transparent pixels."""

    @model_validator(mode="after")
    def _check_channels(self) -> Self:
        if {len(self.mean), len(self.std)} != {self.channels}:
            raise ValueError(f"mean and std have one value for each of the {self.channels} channels of {self.mode}")
        if self.size[0] * self.size[1] > MAX_PIXELS * self.crop**2:
            raise ValueError(f"size and crop resize images to more than {MAX_PIXELS:,} pixels")
        return self

    @property
    def modality(self) -> str:
        """The field of a batch that it makes."""
        return "image"

    @property
    def channels(self) -> int:
        """The number of input channels."""
        return 3 if self.mode == "rgb" else 1

    def resize_size(self, rows: int, columns: int) -> tuple[int, int]:
        """The size to which an image of this many rows and columns is resized before it is cropped."""
        return self.size_to_cover(rows, columns, self.crop)

    def size_to_cover(self, rows: int, columns: int, crop: float) -> tuple[int, int]:
        """The smallest size, at the image's aspect ratio unless it is squashed, whose fraction `crop` is `size`."""
        cover_rows, cover_columns = (math.floor(side / crop) for side in self.size)
        if self.resize == "squash":
            return cover_rows, cover_columns
        # The short side first, then the other rounded down, as in timm and torchvision.
        if cover_columns * rows >= cover_rows * columns:
            return max(cover_rows, cover_columns * rows // columns), cover_columns
        return cover_rows, max(cover_columns, cover_rows * columns // rows)

    def window(self, rows: int, columns: int) -> tuple[float, float, float, float]:
        """The part of an image that the model sees: top, left, bottom and right as fractions of its sides."""
        (full_rows, full_columns), (top, left) = self._crop(rows, columns)
        return (
            top / full_rows,
            left / full_columns,
            (top + self.size[0]) / full_rows,
            (left + self.size[1]) / full_columns,
        )

    def decode(self, content: bytes, *, name: str = "the image") -> Pixels:
        """The pixels of an encoded image, decoded at no larger a size than `resize_and_crop` needs."""
        return decode_image(
            content, name=name, mode=self.mode, background=self.background, target_size=self.resize_size
        )

    def read(self, content: bytes, *, name: str = "the image") -> Pixels:
        """The pixels that a model sees of an encoded image, still in 8 bits."""
        return self.resize_and_crop(self.decode(content, name=name))

    def resize_and_crop(self, image: Pixels) -> Pixels:
        """The resized and cropped image, still in 8 bits."""
        return resize_part(image, *self._crop(*image.shape[:2]), self.size, self.kernel)

    def _crop(self, rows: int, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The size that an image is resized to, and the top left corner of the crop."""
        whole = self.resize_size(rows, columns)
        top, left = (round((full - kept) / 2) for full, kept in zip(whole, self.size, strict=True))
        return whole, (top, left)

    def empty_batch(self, num: int) -> Float[Tensor, "B C Y X"]:
        """An uninitialised batch, channels last in memory."""
        # NumPy allocates huge pages, which are several times faster on first touch.
        batch = np.empty((num, *self.size, self.channels), dtype=np.float32)
        return torch.from_numpy(batch).permute(0, 3, 1, 2)

    def normalise(
        self, batch: UInt8[np.ndarray, "B Y X C"], *, out: Float[Tensor, "B C Y X"] | None = None
    ) -> Float[Tensor, "B C Y X"]:
        """A batch as the model takes it: scaled to 0 to 1, then normalised by mean and std."""
        out = self.empty_batch(len(batch)) if out is None else out
        mean, std = _row(self.mean, self.size[1]), _row(self.std, self.size[1])
        # Whole rows at a time, and one image at a time, so that it stays in the CPU cache. With NumPy, because PyTorch
        # would start threads of its own in each loader thread; the results are bit-identical.
        rows = out.permute(0, 2, 3, 1).numpy().reshape(len(batch), self.size[0], -1)
        for row, pixels in zip(rows, batch, strict=True):
            row[...] = pixels.reshape(row.shape)
            np.divide(row, np.float32(255.0), out=row)
            np.subtract(row, mean, out=row)
            np.divide(row, std, out=row)
        return out

    def __call__(self, image: Image.Image | Pixels) -> Float[Tensor, "C Y X"]:
        if isinstance(image, Image.Image):
            image = np.asarray(orient_image(to_rgb(image, self.background), orientation_of(image)))
        return self.normalise(self.resize_and_crop(as_pixels(image, self.mode))[None])[0]


class RawPixels(Preprocess):
    """The preprocessing for a model that normalises its input itself: resize and crop only."""

    def empty_batch(self, num: int) -> UInt8[Tensor, "B C Y X"]:
        """An uninitialised batch, channels last in memory."""
        return torch.from_numpy(np.empty((num, *self.size, self.channels), dtype=np.uint8)).permute(0, 3, 1, 2)

    def normalise(
        self, batch: UInt8[np.ndarray, "B Y X C"], *, out: UInt8[Tensor, "B C Y X"] | None = None
    ) -> UInt8[Tensor, "B C Y X"]:
        """The pixels unchanged."""
        pixels = torch.from_numpy(batch).permute(0, 3, 1, 2)
        return pixels if out is None else out.copy_(pixels)


def scale_size(size: tuple[int, ...], cells: tuple[int, ...], factor: float) -> tuple[int, ...]:
    """Scale a size by a factor, rounded down to whole cells of its grid, at least one."""
    return tuple(
        max(1, round(side * factor) // (side // num)) * (side // num) for side, num in zip(size, cells, strict=True)
    )
