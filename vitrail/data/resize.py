"""Antialiased resizing: with PyTorch's kernels where it has them, four times as fast as Pillow's."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from vitrail.data.decode import Pixels

Kernel = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
MAX_WHOLE = 16_000_000  # pixels of an image that is enlarged and then cropped
KERNELS: dict[str, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}


def resize(pixels: Pixels, rows: int, columns: int, kernel: Kernel) -> Pixels:
    """The pixels resized to rows x columns.

    PyTorch and Pillow both compute in integers; one pixel in 400 differs by one level, more for tall images, for which
    Pillow resizes the rows first.
    """
    if pixels.shape[:2] == (rows, columns):
        return pixels
    if kernel in ("bilinear", "bicubic"):
        # Indexing before permuting keeps strides that PyTorch recognises, and returns, as channels last.
        planes = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
        resized = F.interpolate(planes, size=(rows, columns), mode=kernel, antialias=True)
        return resized[0].permute(1, 2, 0).numpy()
    return resize_box(pixels, rows, columns, kernel, (0.0, 0.0, float(pixels.shape[1]), float(pixels.shape[0])))


def resize_part(
    pixels: Pixels, whole: tuple[int, int], start: tuple[int, int], size: tuple[int, int], kernel: Kernel
) -> Pixels:
    """The crop of size `size` at `start` from the image resized to `whole`."""
    (rows, columns), (top, left) = size, start
    if whole[0] * whole[1] <= MAX_WHOLE:
        return resize(pixels, *whole, kernel)[top : top + rows, left : left + columns]
    # A resized image of 16,384 x 1 would fill the memory, so only the crop is computed. Pillow then rounds some pixels
    # differently, so all other images are resized whole and then cropped, as in timm and torchvision.
    y, x = pixels.shape[0] / whole[0], pixels.shape[1] / whole[1]
    return resize_box(pixels, rows, columns, kernel, (left * x, top * y, (left + columns) * x, (top + rows) * y))


def resize_box(
    pixels: Pixels, rows: int, columns: int, kernel: Kernel, box: tuple[float, float, float, float]
) -> Pixels:
    """A box of the image (left, top, right, bottom, in fractional pixels) resized with Pillow."""
    resized = to_image(pixels).resize((columns, rows), KERNELS[kernel], box=box)
    return np.array(resized).reshape(rows, columns, pixels.shape[2])


def to_image(pixels: Pixels) -> Image.Image:
    """The pixels as a Pillow image."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
