"""Masked patch prediction as the Vision Transformer's paper does it (arXiv 2010.11929, section 4.6, appendix B.1.2).

Half of the patches are hidden. Of these, 80 % are replaced by a learned mask token, 10 % by another patch, and 10 %
stay; the preparation draws which. From each hidden patch's output, a linear layer predicts one of three targets.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import contract
from vitrail.batch import Fields
from vitrail.nn.patches import cut_patches, hide_patches
from vitrail.objective.masked_image.base import MaskedImage
from vitrail.objective.masked_image.targets import Target, draw_patches, losses_of, output_width, target_of

INIT_STD = 0.02


class MaskedPatches(MaskedImage):
    """Predicts colours or pixels of hidden patches from the outputs at their places."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        *,
        target: Target = "mean_colour",
        cell: tuple[int, ...] = (16, 16),
        width: int = 192,
        mean: tuple[float, ...] = (0.5, 0.5, 0.5),
        std: tuple[float, ...] = (0.5, 0.5, 0.5),
    ) -> None:
        super().__init__()
        self.target, self.cell = target, cell
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("std", torch.tensor(std), persistent=False)
        self.mask_token = nn.Parameter(torch.empty(width).normal_(std=INIT_STD))
        self.norm = nn.LayerNorm(width)
        self.predictor = nn.Linear(width, output_width(target, cell, len(mean)))

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """The layer that predicts."""
        return (self.predictor,)

    def predict(self, model: contract.Classifier, fields: Fields) -> Float[Tensor, "B M F"]:
        """Encode the image with hidden patches, and read the outputs at their places."""
        assert isinstance(model, contract.PatchClassifier)
        hidden, shown = fields["hidden"], fields["shown"]
        tokens = model.tokenize(hide_patches(fields["image"], self.cell, hidden, shown))
        rows = torch.arange(len(hidden), device=hidden.device)[:, None]
        places = hidden + tokens.layout.prefix
        masked = self.mask_token + model.cell_positions(tokens.layout.grid).to(tokens.x)[hidden]
        instead = torch.where((shown < 0)[:, :, None], masked.to(tokens.x), tokens.x[rows, places])
        encoded = model.encode(tokens.with_x(tokens.x.index_put((rows, places), instead)))
        return self.predictor(self.norm(encoded.x[rows, places]))

    def compare(self, predicted: Float[Tensor, "B M F"], fields: Fields) -> Float[Tensor, "B M"]:
        """The loss of each hidden patch."""
        return losses_of(self.target, predicted, target_of(self.target, self._hidden(fields), self.mean, self.std))

    def draw(self, predicted: Float[Tensor, "B M F"], fields: Fields) -> Float[Tensor, "B M P Q C"]:  # noqa: ARG002
        """The predicted patches as pixels."""
        return draw_patches(self.target, predicted, self.cell, self.mean, self.std)

    def _hidden(self, fields: Fields) -> Float[Tensor, "B M P Q C"]:
        patches, hidden = cut_patches(fields["image"], self.cell), fields["hidden"]
        return patches[torch.arange(len(hidden), device=hidden.device)[:, None], hidden]


Objective = MaskedPatches
