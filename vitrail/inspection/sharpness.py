"""How sharp a minimum is: the largest eigenvalue of the loss's Hessian, and the loss along two directions from it.

SAM looks for flat minima (Foret et al., arXiv 2010.01412, section 4.2 and figure 3). The Hessian is never formed: power
iteration needs its products with vectors only, each of which is a second backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor, nn

from vitrail.contract import Classifier
from vitrail.nn.attention.full import set_fused
from vitrail.nn.displace import displaced

NUM_IMAGES, BATCH_SIZE = 256, 64
MAX_ITERATIONS, TOLERANCE = 100, 0.01
RADIUS, NUM_DISTANCES = 0.5, 11
Batches = Sequence[tuple[Float[Tensor, "B C Y X"], Int64[Tensor, " B"]]]


@dataclass(frozen=True, kw_only=True)
class Sharpness:
    """The loss of a model on some images, and how it changes with the weights."""

    eigenvalue: float
    """The largest of the Hessian, by magnitude."""
    iterations: int
    converged: bool
    """Whether the eigenvalue had settled within a percent when the iterations ended."""
    loss: float
    num_images: int
    distances: tuple[float, ...]
    """How far the weights were moved."""
    worst: tuple[float, ...]
    """The loss at each distance along the eigenvector."""
    random: tuple[float, ...]
    """The loss at each distance along a random direction."""

    def figure(self, title: str) -> Figure:
        """The loss along both directions."""
        figure = Figure(figsize=(5.0, 3.2), layout="constrained")
        axis = figure.subplots()
        axis.plot(self.distances, self.worst, marker="o", markersize=3, label="the Hessian's largest eigenvector")
        axis.plot(self.distances, self.random, marker="o", markersize=3, label="a random direction")
        axis.set(xlabel="distance from the weights", ylabel=f"loss on {self.num_images:,} images")
        axis.set_title(f"{title}: largest eigenvalue {self.eigenvalue:.3g}", fontsize=10, parse_math=False)
        axis.legend(frameon=False, fontsize=8)
        return figure


def measure_sharpness(
    model: Classifier, batches: Batches, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Sharpness:
    """Measure the sharpness of the cross-entropy on these images, with the model in evaluation mode."""
    model.eval()
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.requires_grad_(True)
    set_fused(model, fused=False)  # the fused kernels have no second derivative
    generator = torch.Generator().manual_seed(seed)
    direction = random_direction(parameters, generator)
    total = MAX_ITERATIONS + 2 * NUM_DISTANCES
    eigenvalue, iterations, converged = 0.0, 0, False
    for iterations in range(1, MAX_ITERATIONS + 1):
        product = hessian_product(model, parameters, direction, batches)
        before, eigenvalue = eigenvalue, sum((a * b).sum().item() for a, b in zip(direction, product, strict=True))
        direction = normalise(product)
        if progress is not None:
            progress(iterations, total)
        converged = abs(eigenvalue - before) <= TOLERANCE * abs(eigenvalue)
        if converged:
            break
    distances = torch.linspace(-RADIUS, RADIUS, NUM_DISTANCES).tolist()
    lines = []
    for number, line in enumerate((direction, random_direction(parameters, generator))):
        losses = []
        for place, distance in enumerate(distances):
            with displaced(parameters, line, distance):
                losses.append(mean_loss(model, batches))
            if progress is not None:
                progress(MAX_ITERATIONS + number * NUM_DISTANCES + place + 1, total)
        lines.append(tuple(losses))
    set_fused(model, fused=True)
    return Sharpness(
        eigenvalue=eigenvalue,
        iterations=iterations,
        converged=converged,
        loss=mean_loss(model, batches),
        num_images=sum(len(labels) for _, labels in batches),
        distances=tuple(distances),
        worst=lines[0],
        random=lines[1],
    )


def hessian_product(
    model: nn.Module, parameters: Sequence[Tensor], direction: Sequence[Tensor], batches: Batches
) -> list[Tensor]:
    """The Hessian of the mean loss times a direction."""
    num = sum(len(labels) for _, labels in batches)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for images, labels in batches:
        loss = F.cross_entropy(model(images), labels, reduction="sum") / num
        gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
        slope = sum(
            (gradient * part).sum() for gradient, part in zip(gradients, direction, strict=True) if gradient is not None
        )
        assert isinstance(slope, Tensor)
        products = torch.autograd.grad(slope, parameters, allow_unused=True)
        for sum_so_far, product in zip(total, products, strict=True):
            if product is not None:
                sum_so_far.add_(product)
    return total


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Batches) -> float:
    """The mean cross-entropy."""
    losses = [F.cross_entropy(model(images), labels, reduction="sum").item() for images, labels in batches]
    return sum(losses) / sum(len(labels) for _, labels in batches)


def random_direction(parameters: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """A random direction of length one."""
    return normalise([torch.randn(parameter.shape, generator=generator).to(parameter) for parameter in parameters])


def normalise(direction: Sequence[Tensor]) -> list[Tensor]:
    """The same direction with length one."""
    length = torch.stack([part.double().square().sum() for part in direction]).sum().sqrt().item()
    return [part / max(length, 1e-30) for part in direction]
