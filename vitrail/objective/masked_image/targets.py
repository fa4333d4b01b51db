"""What masked patch prediction predicts of a hidden patch (Dosovitskiy et al., arXiv 2010.11929, appendix B.1.2).

The paper tries three targets: the mean colour with 3 bits per channel, so one of 512 colours; the same for each cell of
a patch downsized to 4 x 4; and all pixels, by L2. Images are in the model's normalisation, colours in that of files.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float, Int64
from torch import Tensor

Target = Literal["mean_colour", "downsized", "full_patch"]
LEVELS = 8  # of each channel: 3 bits
DOWNSIZED = 4  # rows and columns of a downsized patch


def num_colours(channels: int) -> int:
    """The number of different colours: 512 for three channels."""
    return LEVELS**channels


def downsized_sides(cell: tuple[int, ...]) -> tuple[int, ...]:
    """Rows and columns of a downsized patch; a small patch keeps its own."""
    return tuple(min(side, DOWNSIZED) for side in cell)


def output_width(target: Target, cell: tuple[int, ...], channels: int) -> int:
    """How many numbers are predicted for each patch."""
    rows, columns = cell
    if target == "full_patch":
        return rows * columns * channels
    down_rows, down_columns = downsized_sides(cell)
    return num_colours(channels) * (1 if target == "mean_colour" else down_rows * down_columns)


def find_colours(values: Float[Tensor, "... C"]) -> Int64[Tensor, ...]:
    """The number of each colour; `values` are between 0 and 1, the first channel counts most."""
    levels = (values * LEVELS).floor().long().clamp(0, LEVELS - 1)
    weights = LEVELS ** torch.arange(values.shape[-1] - 1, -1, -1, device=values.device)
    return (levels * weights).sum(dim=-1)


def colour_values(colours: Int64[Tensor, ...], channels: int) -> Float[Tensor, "... C"]:
    """The middle of each colour's range, between 0 and 1."""
    weights = LEVELS ** torch.arange(channels - 1, -1, -1, device=colours.device)
    return (colours[..., None] // weights % LEVELS + 0.5) / LEVELS


def downsize(patches: Float[Tensor, "B M P Q C"]) -> Float[Tensor, "B M p q C"]:
    """Average a patch to 4 x 4 cells, or fewer if it is smaller."""
    rows, columns = downsized_sides(tuple(patches.shape[-3:-1]))
    small = F.adaptive_avg_pool2d(rearrange(patches, "B M P Q C -> (B M) C P Q"), (rows, columns))
    return rearrange(small, "(B M) C p q -> B M p q C", B=len(patches))


def target_of(
    target: Target, patches: Float[Tensor, "B M P Q C"], mean: Float[Tensor, " C"], std: Float[Tensor, " C"]
) -> Tensor:
    """What is to be predicted of each patch: colours, one or several, or all of its numbers."""
    if target == "full_patch":
        return rearrange(patches, "B M P Q C -> B M (P Q C)")
    values = patches * std + mean
    if target == "mean_colour":
        return find_colours(reduce(values, "B M P Q C -> B M 1 C", "mean"))
    return find_colours(rearrange(downsize(values), "B M p q C -> B M (p q) C"))


def losses_of(target: Target, predicted: Float[Tensor, "B M F"], wanted: Tensor) -> Float[Tensor, "B M"]:
    """The loss of each patch: cross-entropy of its colours, or the mean square of the differences."""
    if target == "full_patch":
        return (predicted - wanted).square().mean(dim=-1)
    logits = rearrange(predicted, "B M (n K) -> (B M n) K", n=wanted.shape[-1])
    losses = F.cross_entropy(logits, wanted.flatten(), reduction="none")
    return losses.view(wanted.shape).mean(dim=-1)


def draw_patches(
    target: Target,
    predicted: Float[Tensor, "B M F"],
    cell: tuple[int, ...],
    mean: Float[Tensor, " C"],
    std: Float[Tensor, " C"],
) -> Float[Tensor, "B M P Q C"]:
    """The predicted patches in the model's normalisation: the most likely colours, enlarged, or the pixels."""
    channels, (rows, columns) = len(mean), cell
    if target == "full_patch":
        return rearrange(predicted, "B M (P Q C) -> B M P Q C", P=rows, Q=columns)
    sides = downsized_sides(cell) if target == "downsized" else (1, 1)
    colours = rearrange(predicted, "B M (n K) -> B M n K", n=sides[0] * sides[1]).argmax(dim=-1)
    values = rearrange(colour_values(colours, channels), "B M (p q) C -> (B M) C p q", p=sides[0])
    large = F.interpolate(values, size=(rows, columns), mode="nearest")
    return (rearrange(large, "(B M) C P Q -> B M P Q C", B=len(predicted)) - mean) / std
