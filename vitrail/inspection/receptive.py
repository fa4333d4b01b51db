"""The effective receptive field (Luo et al., arXiv 1701.04128): which pixels the centre feature depends on.

Works for convolutions and transformers alike, so that the two can be compared by measurement.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitrail.contract import Classifier
from vitrail.errors import InspectionError
from vitrail.inspection.trace import has_attention
from vitrail.model.resnets.classifier import ResNetClassifier
from vitrail.tokens import Tokens


def iter_stages(model: Classifier, images: Float[Tensor, "B C Y X"]) -> Iterator[tuple[str, Tokens]]:
    """The name and the features of each stage of a model."""
    tokens = model.tokenize(images)
    yield "stem", tokens
    if has_attention(model):
        for number, block in enumerate(model.blocks, start=1):
            tokens = block(tokens)
            yield f"block {number}", tokens
        return
    if not isinstance(model, ResNetClassifier):
        raise InspectionError(
            "this model has no stages to compare.",
            got=f"a {type(model).__name__}.",
            hint="a Vision Transformer or a ResNet.",
        )
    features = rearrange(tokens.x, "B (Y X) D -> B D Y X", Y=tokens.layout.grid[0])
    for number, stage in enumerate(model.stages, start=1):
        features = stage(features)
        cells = rearrange(features, "B D Y X -> B (Y X) D")
        yield f"stage {number}", Tokens(cells, tokens.layout._replace(grid=tuple(features.shape[2:])))


def receptive_fields(model: Classifier, images: Float[Tensor, "B C Y X"]) -> Iterator[tuple[str, Float[Tensor, "Y X"]]]:
    """The magnitude of the centre feature's gradient at each pixel, after each stage of the model; sums to one."""
    with torch.enable_grad():
        pixels = images.detach().clone().requires_grad_()
        for name, tokens in iter_stages(model, pixels):
            rows, columns = tokens.layout.grid
            centre = tokens.cells[:, rows // 2 * columns + columns // 2]
            (gradient,) = torch.autograd.grad(centre.sum(), pixels, retain_graph=True)
            field = gradient.abs().sum(dim=1).mean(dim=0)
            yield name, field / field.sum().clamp_min(1e-30)


def radius(field: Float[Tensor, "Y X"]) -> float:
    """The mean distance in pixels from the field's centre of mass."""
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in field.shape), indexing="ij")
    mass = field.double() / field.double().sum()
    centre = (mass * rows).sum(), (mass * columns).sum()
    return (mass * ((rows - centre[0]) ** 2 + (columns - centre[1]) ** 2).sqrt()).sum().item()
