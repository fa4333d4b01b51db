"""The effective receptive field (Luo et al., arXiv 1701.04128): which pixels a feature in the middle depends on.

For convolutions and transformers alike, so that the decks' picture of the one against the other is measured, not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitrail.inspection.trace import has_attention
from vitrail.tokens import Tokens


def stages(model: Any, images: Float[Tensor, "B C Y X"]) -> Iterator[tuple[str, Tokens]]:
    """The features after each part of a model, by name."""
    tokens = model.tokenize(images)
    yield "stem", tokens
    if has_attention(model):
        for number, block in enumerate(model.blocks, start=1):
            tokens = block(tokens)
            yield f"block {number}", tokens
        return
    features = rearrange(tokens.x, "B (Y X) D -> B D Y X", Y=tokens.layout.grid[0])
    for number, stage in enumerate(model.stages, start=1):
        features = stage(features)
        cells = rearrange(features, "B D Y X -> B (Y X) D")
        yield f"stage {number}", Tokens(cells, tokens.layout._replace(grid=tuple(features.shape[2:])))


def receptive_fields(model: Any, images: Float[Tensor, "B C Y X"]) -> Iterator[tuple[str, Float[Tensor, "Y X"]]]:
    """The size of the gradient of the middle cell's features in each pixel, after each part of the model."""
    with torch.enable_grad():
        pixels = images.detach().clone().requires_grad_()
        for name, tokens in stages(model, pixels):
            rows, columns = tokens.layout.grid
            middle = tokens.cells[:, rows // 2 * columns + columns // 2]
            (gradient,) = torch.autograd.grad(middle.sum(), pixels, retain_graph=True)
            field = gradient.abs().sum(dim=1).mean(dim=0)
            yield name, field / field.sum().clamp_min(1e-30)


def radius(field: Float[Tensor, "Y X"]) -> float:
    """The mean distance in pixels from the middle of what the feature depends on."""
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in field.shape), indexing="ij")
    share = field.double() / field.double().sum()
    centre = (share * rows).sum(), (share * columns).sum()
    return (share * ((rows - centre[0]) ** 2 + (columns - centre[1]) ** 2).sqrt()).sum().item()
