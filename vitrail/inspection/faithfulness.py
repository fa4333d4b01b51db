"""Which map deserves trust? Deletion and insertion (Petsiuk et al., arXiv 1806.07421).

The cells that a map calls important are taken away first (deletion), or given first to a blurred picture (insertion).
If the map is right, the probability of the class falls at once, or rises at once. Two maps that know nothing of the
model stand beside: one of chance, and one of edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

NUM_STEPS = 14
BLUR = 16  # the picture is reduced by this to be blurred
BATCH = 16


class Curves(NamedTuple):
    """The class's probability while cells are given, and while they are taken away; the areas below."""

    insertion: Float[Tensor, " S"]
    deletion: Float[Tensor, " S"]

    @property
    def insertion_area(self) -> float:
        """Higher is better."""
        return torch.trapezoid(self.insertion.double()).item() / (len(self.insertion) - 1)

    @property
    def deletion_area(self) -> float:
        """Lower is better."""
        return torch.trapezoid(self.deletion.double()).item() / (len(self.deletion) - 1)


def blurred(images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y X"]:
    """The picture without what one could recognise it by."""
    size = tuple(images.shape[2:])
    small = F.interpolate(images, [max(1, side // BLUR) for side in size], mode="area")
    return F.interpolate(small, size, mode="bilinear")


def edges(images: Float[Tensor, "1 C Y X"], grid: tuple[int, ...]) -> Float[Tensor, "Y X"]:
    """How strong the edges are in each cell, by Sobel's filter."""
    grey = images.mean(dim=1, keepdim=True)
    across = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]).to(grey)
    gradients = F.conv2d(F.pad(grey, (1,) * 4, mode="replicate"), torch.stack([across, across.T])[:, None])
    return F.adaptive_avg_pool2d(gradients.norm(dim=1, keepdim=True), (grid[0], grid[1]))[0, 0]


def random_map(grid: tuple[int, ...], seed: int) -> Float[Tensor, "Y X"]:
    """A map of nothing."""
    return torch.rand(grid, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def curves(
    model: Any, images: Float[Tensor, "1 C Y X"], number: int, heat: Float[Tensor, "Y X"], *, steps: int = NUM_STEPS
) -> Curves:
    """The probability of class `number` while the cells come and go in the order of the map."""
    order = heat.flatten().argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    levels = torch.linspace(0, len(order), steps + 1, device=order.device).round()
    shown = (rank < levels[:, None]).float().view(-1, 1, *heat.shape)
    shown = F.interpolate(shown, tuple(images.shape[2:]), mode="nearest").to(images)
    plain = blurred(images)
    given = plain + shown * (images - plain)
    taken = images + shown * (plain - images)
    parts = torch.split(torch.cat([given, taken]), BATCH)
    odds = torch.cat([model(part).float().softmax(dim=1)[:, number] for part in parts]).cpu()
    return Curves(odds[: steps + 1], odds[steps + 1 :])


def judged(
    model: Any, images: Float[Tensor, "1 C Y X"], number: int, maps: Mapping[str, Tensor], *, seed: int = 0
) -> dict[str, Curves]:
    """The curves of each map, and of chance and of edges."""
    grid = tuple(next(iter(maps.values())).shape)
    whole = {**maps, "edges": edges(images, grid), "chance": random_map(grid, seed)}
    return {name: curves(model, images, number, heat) for name, heat in whole.items()}
