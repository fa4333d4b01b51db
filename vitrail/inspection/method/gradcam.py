"""Grad-CAM (Selvaraju et al., arXiv 1610.02391) on the last feature map: the baseline that needs no attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.contract import Classifier
from vitrail.errors import InspectionError
from vitrail.inspection.trace import has_attention, has_latents
from vitrail.tokens import Tokens

TITLE = "Grad-CAM"
DESCRIPTION = "Features weighted by their gradient: where features that support the selected class are strong."
NEEDS_ATTENTION = False


def applies(model: Classifier) -> bool:
    """Whether the method works for a model: the features of a Perceiver have no place in its input."""
    return not has_latents(model)


def compute_heatmaps(
    model: Classifier, images: Float[Tensor, "1 C *size"], classes: Sequence[int]
) -> Float[Tensor, "K ..."]:
    """Where the features that support each class are strong."""
    if not applies(model):
        raise InspectionError(
            "Grad-CAM needs features on a grid, and the latents of a Perceiver have no place in its input.",
            got=f"a {type(model).__name__}.",
            hint="--method relevance or --method rollout.",
        )
    with torch.enable_grad():
        tokens, logits = _last_features(model, images.detach().requires_grad_())
        heatmaps = []
        for place, number in enumerate(classes):
            (gradient,) = torch.autograd.grad(logits[0, number], tokens.x, retain_graph=place + 1 < len(classes))
            weight = tokens.with_x(gradient).cells.mean(dim=1, keepdim=True)
            heatmaps.append((weight * tokens.cells).sum(dim=-1).clamp_min(0.0)[0])
    return torch.stack(heatmaps).detach().view(len(heatmaps), *tokens.layout.grid)


def _last_features(model: Classifier, images: Float[Tensor, "1 C *size"]) -> tuple[Tokens, Float[Tensor, "1 K"]]:
    """The last features whose position still matters: in a transformer, those before the last block's attention."""
    tokens = model.tokenize(images)
    if has_attention(model):
        *earlier, last = model.blocks
        for block in earlier:
            tokens = block(tokens)
        output = last(tokens)
        return tokens, model.classify(output.with_x(model.norm(output.x)))
    tokens = model.encode(tokens)
    return tokens, model.classify(tokens)
