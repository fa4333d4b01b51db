"""Patch embedding filters, position embedding similarity (arXiv 2010.11929, figure 7), and tokens as colours."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.contract import Classifier
from vitrail.errors import InspectionError
from vitrail.model.vit import VisionTransformer
from vitrail.tokens import Layout


def principal_components(rows: Float[Tensor, "n d"], num: int) -> Float[Tensor, "k d"]:
    """The first `num` principal components; the largest entry of each is positive, so that signs are deterministic."""
    centred = (rows - rows.mean(dim=0)).double()
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[:num]
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return (directions * largest.sign()).float()


def filters(model: Classifier, num: int = 28) -> Float[Tensor, "n P P C"]:
    """The principal components of the patch embedding's filters as images with values from 0 to 1."""
    if not isinstance(model, VisionTransformer) or model.spec.stem.name != "patch":
        raise InspectionError(
            "this model has no linear patch embedding, so no filters to show.",
            got=f"a {type(model).__name__}{' with a convolutional stem' * isinstance(model, VisionTransformer)}.",
            hint="a model with a linear patch embedding, such as vit_base_patch16_224.",
        )
    weight = model.patch_embed.proj.weight.detach().float().cpu()
    components = principal_components(weight.flatten(1), min(num, *weight.flatten(1).shape))
    low, high = components.amin(dim=1, keepdim=True), components.amax(dim=1, keepdim=True)
    return ((components - low) / (high - low).clamp_min(1e-12)).view(-1, *weight.shape[1:]).permute(0, 2, 3, 1)


def position_similarity(model: Classifier) -> Float[Tensor, "Y X Y X"]:
    """The cosine similarity between the position embedding of each cell (first two dimensions) and every other."""
    layout: Layout = model.spec.layout
    table = model.position_table(layout.grid) if isinstance(model, VisionTransformer) else None
    if table is None:
        position = f" with position={model.spec.position}" if isinstance(model, VisionTransformer) else ""
        raise InspectionError(
            "this model adds no position embeddings to its tokens.", got=f"a {type(model).__name__}{position}."
        )
    cells = F.normalize(table[0, -layout.num_cells :].detach().float(), dim=1)
    return (cells @ cells.T).view(*layout.grid, *layout.grid).cpu()


def token_colours(cells: Float[Tensor, "n d"]) -> Float[Tensor, "n 3"]:
    """Tokens as RGB from 0 to 1: their first three principal components, so similar tokens have similar colours."""
    cells = cells.float()
    basis = principal_components(cells, min(3, *cells.shape))
    values = F.pad((cells - cells.mean(dim=0)) @ basis.T, (0, 3 - len(basis)))
    low, high = (values.quantile(fraction, dim=0) for fraction in (0.02, 0.98))
    return ((values - low) / (high - low).clamp_min(1e-12)).clamp(0.0, 1.0)


def mosaic(tiles: NDArray[np.floating], columns: int) -> NDArray[np.floating]:
    """Tile small images `[n, Y, X]` or `[n, Y, X, C]` into rows of `columns`; gaps and unused tiles are NaN."""
    rows = -(-len(tiles) // columns)
    padding = [(0, rows * columns - len(tiles)), (0, 1), (0, 1), *[(0, 0)] * (tiles.ndim - 3)]
    padded = np.pad(tiles, padding, constant_values=np.nan)
    lines = [np.concatenate(list(line), axis=1) for line in padded.reshape(rows, columns, *padded.shape[1:])]
    return np.concatenate(lines)[:-1, :-1]
