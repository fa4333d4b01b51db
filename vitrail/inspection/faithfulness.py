"""Deletion and insertion scores (Petsiuk et al., arXiv 1806.07421): how faithful is a heatmap to the model?

Patches are removed from the image (deletion), or added to a blurred copy (insertion), in the heatmap's order of
importance. If the heatmap is right, the probability of the class falls, or rises, quickly. Two baselines ignore the
model: a random map and an edge map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

NUM_STEPS = 14
BLUR = 16  # the factor by which an image is downsampled to blur it
BATCH = 16


class Curves(NamedTuple):
    """The probability of the class while patches are added, and while they are removed."""

    insertion: Float[Tensor, " S"]
    deletion: Float[Tensor, " S"]

    @property
    def insertion_area(self) -> float:
        """The area under the curve; higher is better."""
        return torch.trapezoid(self.insertion.double()).item() / (len(self.insertion) - 1)

    @property
    def deletion_area(self) -> float:
        """The area under the curve; lower is better."""
        return torch.trapezoid(self.deletion.double()).item() / (len(self.deletion) - 1)


def blur(images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y X"]:
    """The images, blurred beyond recognition."""
    size = tuple(images.shape[2:])
    small = F.interpolate(images, [max(1, side // BLUR) for side in size], mode="area")
    return F.interpolate(small, size, mode="bilinear")


def edge_map(images: Float[Tensor, "1 C Y X"], grid: tuple[int, ...]) -> Float[Tensor, "Y X"]:
    """The mean edge strength in each cell, by the Sobel filter."""
    grey = images.mean(dim=1, keepdim=True)
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]).to(grey)
    gradients = F.conv2d(F.pad(grey, (1,) * 4, mode="replicate"), torch.stack([sobel, sobel.T])[:, None])
    return F.adaptive_avg_pool2d(gradients.norm(dim=1, keepdim=True), (grid[0], grid[1]))[0, 0]


def random_map(grid: tuple[int, ...], seed: int) -> Float[Tensor, "Y X"]:
    """A map of uniform noise."""
    return torch.rand(grid, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def compute_curves(
    model: nn.Module,
    images: Float[Tensor, "1 C Y X"],
    number: int,
    heatmap: Float[Tensor, "Y X"],
    *,
    steps: int = NUM_STEPS,
) -> Curves:
    """The probability of class `number` while cells are added and removed in the heatmap's order."""
    order = heatmap.flatten().argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    levels = torch.linspace(0, len(order), steps + 1, device=order.device).round()
    mask = (rank < levels[:, None]).float().view(-1, 1, *heatmap.shape)
    mask = F.interpolate(mask, tuple(images.shape[2:]), mode="nearest").to(images)
    blurred = blur(images)
    inserted = blurred + mask * (images - blurred)
    deleted = images + mask * (blurred - images)
    batches = torch.split(torch.cat([inserted, deleted]), BATCH)
    probabilities = torch.cat([model(batch).float().softmax(dim=1)[:, number] for batch in batches]).cpu()
    return Curves(probabilities[: steps + 1], probabilities[steps + 1 :])


def evaluate_heatmaps(
    model: nn.Module, images: Float[Tensor, "1 C Y X"], number: int, heatmaps: Mapping[str, Tensor], *, seed: int = 0
) -> dict[str, Curves]:
    """The curves of each heatmap and of the two baselines."""
    grid = tuple(next(iter(heatmaps.values())).shape)
    with_baselines = {**heatmaps, "edges": edge_map(images, grid), "chance": random_map(grid, seed)}
    return {name: compute_curves(model, images, number, heatmap) for name, heatmap in with_baselines.items()}
