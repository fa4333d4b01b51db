"""The one preprocessing: resize, crop, scale, the same for every verb that shows a picture to a model."""

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

from vitrail.data.decode import Mode, Pixels, as_pixels, decode_image, orientation_of, to_rgb, upright
from vitrail.data.resize import Kernel, resize_part
from vitrail.spec import Pair, Spec

Byte = Annotated[int, Field(ge=0, le=255)]


@cache
def _row(values: tuple[float, ...], columns: int) -> Float[np.ndarray, " X*C"]:
    """One value a channel, as often as a row of pixels has it."""
    return np.tile(np.array(values, dtype=np.float32), columns)


class Preprocess(Spec):
    """How a picture becomes the tensor that a model was trained on."""

    size: Pair = (224, 224)
    resize: Literal["cover", "squash"] = "cover"
    """`cover` keeps the aspect ratio and crops what stands over, `squash` gives it up."""
    kernel: Kernel = "bicubic"
    crop: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """The part of the resized picture that is kept: 224 of 248 pixels is 0.9."""
    mean: tuple[float, float, float] | tuple[float] = (0.5, 0.5, 0.5)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | tuple[PositiveFloat] = (0.5, 0.5, 0.5)
    mode: Mode = "rgb"
    """`rgb` for three channels, `grey` for one."""
    background: tuple[Byte, Byte, Byte] = (255, 255, 255)
    """The colour that transparent pictures are laid over."""

    @model_validator(mode="after")
    def _check_channels(self) -> Self:
        if {len(self.mean), len(self.std)} != {self.channels}:
            raise ValueError(f"mean and std have one value for each of the {self.channels} channels of {self.mode}")
        return self

    @property
    def channels(self) -> int:
        """The number of channels that the model sees."""
        return 3 if self.mode == "rgb" else 1

    def target(self, rows: int, columns: int) -> tuple[int, int]:
        """The size to which a picture of this many rows and columns is resized, before it is cropped."""
        cover_rows, cover_columns = (math.floor(side / self.crop) for side in self.size)
        if self.resize == "squash":
            return cover_rows, cover_columns
        # The short side first and the other from it, rounded down, as timm and torchvision do.
        if cover_columns * rows >= cover_rows * columns:
            return max(cover_rows, cover_columns * rows // columns), cover_columns
        return cover_rows, max(cover_columns, cover_rows * columns // rows)

    def window(self, rows: int, columns: int) -> tuple[float, float, float, float]:
        """The part of a picture that the model sees: top, left, bottom and right as shares of its sides."""
        (full_rows, full_columns), (top, left) = self._crop(rows, columns)
        return (
            top / full_rows,
            left / full_columns,
            (top + self.size[0]) / full_rows,
            (left + self.size[1]) / full_columns,
        )

    def decode(self, content: bytes, *, name: str = "the picture") -> Pixels:
        """A file's pixels, of no more than the size that `pixels` has use for."""
        return decode_image(content, name=name, mode=self.mode, background=self.background, target=self.target)

    def pixels(self, picture: Pixels) -> Pixels:
        """The resized and cropped picture, still in 8 bits."""
        return resize_part(picture, *self._crop(*picture.shape[:2]), self.size, self.kernel)

    def _crop(self, rows: int, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The size that a picture is resized to, and the corner from which it is cut."""
        whole = self.target(rows, columns)
        top, left = (round((full - kept) / 2) for full, kept in zip(whole, self.size, strict=True))
        return whole, (top, left)

    def empty_batch(self, num: int) -> Float[Tensor, "B C Y X"]:
        """Room for a batch, channels last in memory."""
        # NumPy's memory comes in huge pages, which are several times as fast to touch for the first time.
        room = np.empty((num, *self.size, self.channels), dtype=np.float32)
        return torch.from_numpy(room).permute(0, 3, 1, 2)

    def normalise(
        self, batch: UInt8[np.ndarray, "B Y X C"], *, out: Float[Tensor, "B C Y X"] | None = None
    ) -> Float[Tensor, "B C Y X"]:
        """A batch of pixels as the model takes it: scaled to 0 to 1, then by mean and std."""
        out = self.empty_batch(len(batch)) if out is None else out
        mean, std = _row(self.mean, self.size[1]), _row(self.std, self.size[1])
        # Whole rows of pixels at a time, and a picture at a time, which stays in the processor's cache. By NumPy, for
        # PyTorch would start threads of its own in each of the loader's; the numbers are the same to the last bit.
        rows = out.permute(0, 2, 3, 1).numpy().reshape(len(batch), self.size[0], -1)
        for row, pixels in zip(rows, batch, strict=True):
            row[...] = pixels.reshape(row.shape)
            np.divide(row, np.float32(255.0), out=row)
            np.subtract(row, mean, out=row)
            np.divide(row, std, out=row)
        return out

    def __call__(self, image: Image.Image | Pixels) -> Float[Tensor, "C Y X"]:
        if isinstance(image, Image.Image):
            image = np.asarray(upright(to_rgb(image, self.background), orientation_of(image)))
        return self.normalise(self.pixels(as_pixels(image, self.mode))[None])[0]


class RawPixels(Preprocess):
    """The preparation for a model that scales pixels by itself: resized and cropped, and left as they are."""

    def empty_batch(self, num: int) -> UInt8[Tensor, "B C Y X"]:
        """Room for a batch, channels last in memory."""
        return torch.from_numpy(np.empty((num, *self.size, self.channels), dtype=np.uint8)).permute(0, 3, 1, 2)

    def normalise(
        self, batch: UInt8[np.ndarray, "B Y X C"], *, out: UInt8[Tensor, "B C Y X"] | None = None
    ) -> UInt8[Tensor, "B C Y X"]:
        """The same pixels."""
        pixels = torch.from_numpy(batch).permute(0, 3, 1, 2)
        return pixels if out is None else out.copy_(pixels)
