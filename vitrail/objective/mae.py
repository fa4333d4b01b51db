"""Masked autoencoders (He et al., arXiv 2111.06377): hide most patches, encode the others, decode all of them.

The encoder sees a quarter of the patches, so a step costs a fraction of one on whole images. A small decoder, which
belongs to the objective and not to the model, predicts the pixels of the hidden patches, each patch normalised by its
own mean and standard deviation.
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import contract
from vitrail.batch import Fields
from vitrail.nn.attention.full import Attention
from vitrail.nn.encoder import build_encoder
from vitrail.nn.patches import cut_patches, hide_patches
from vitrail.nn.position import sincos_2d
from vitrail.objective.masked_image.base import MaskedImage
from vitrail.tokens import Layout, Tokens

INIT_STD = 0.02
HEAD_WIDTH, MIN_WIDTH = 32, 8  # of the decoder
EPS = 1e-6


class Mae(MaskedImage):
    """A decoder of `depth` blocks that sees the encoded patches and a mask token at each hidden place."""

    def __init__(
        self,
        *,
        cell: tuple[int, ...] = (16, 16),
        width: int = 192,
        channels: int = 3,
        decoder_width: int = 128,
        decoder_depth: int = 2,
    ) -> None:
        super().__init__()
        self.cell, self.decoder_width = cell, decoder_width
        self.norm = nn.LayerNorm(width)
        self.embed = nn.Linear(width, decoder_width)
        self.mask_token = nn.Parameter(torch.empty(decoder_width).normal_(std=INIT_STD))
        self.blocks = build_encoder(
            lambda: Attention(width=decoder_width, heads=num_heads(decoder_width)),
            depth=decoder_depth,
            width=decoder_width,
            hidden=4 * decoder_width,
            norm_eps=1e-6,
        )
        self.last_norm = nn.LayerNorm(decoder_width)
        self.predictor = nn.Linear(decoder_width, cell[0] * cell[1] * channels)

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """The layer that predicts."""
        return (self.predictor,)

    def predict(self, model: contract.Classifier, fields: Fields) -> Float[Tensor, "B M F"]:
        """Encode the visible patches, and decode the hidden ones."""
        hidden, shown = fields["hidden"], fields["shown"]
        num = hidden.shape[1]
        tokens = model.tokenize(hide_patches(fields["image"], self.cell, hidden, shown))
        visible = visible_places(hidden, tokens.layout.num_cells)
        encoded = model.encode(tokens.keep(visible))
        places = torch.cat([visible, hidden], dim=1)
        cells = torch.cat(
            [self.embed(self.norm(encoded.cells)), self.mask_token.to(encoded.x).expand(len(hidden), num, -1)], dim=1
        )
        grid = (tokens.layout.grid[0], tokens.layout.grid[1])
        table = sincos_2d(grid, self.decoder_width).to(cells)
        decoded = self.blocks(Tokens(cells + table[places], Layout((places.shape[1],))))
        return self.predictor(self.last_norm(decoded.x[:, -num:]))

    def compare(self, predicted: Float[Tensor, "B M F"], fields: Fields) -> Float[Tensor, "B M"]:
        """The mean square of the differences to each normalised patch."""
        wanted, _, _ = self._normalised(fields)
        return (predicted - wanted).square().mean(dim=-1)

    def draw(self, predicted: Float[Tensor, "B M F"], fields: Fields) -> Float[Tensor, "B M P Q C"]:
        """The predicted patches as pixels, with the mean and standard deviation of the true ones, as in the paper."""
        _, mean, std = self._normalised(fields)
        rows, columns = self.cell
        return rearrange(predicted * std + mean, "B M (P Q C) -> B M P Q C", P=rows, Q=columns)

    def _normalised(self, fields: Fields) -> tuple[Tensor, Tensor, Tensor]:
        patches, hidden = cut_patches(fields["image"], self.cell).flatten(2), fields["hidden"]
        wanted = patches[torch.arange(len(hidden), device=hidden.device)[:, None], hidden]
        mean, var = wanted.mean(dim=-1, keepdim=True), wanted.var(dim=-1, keepdim=True)
        std = (var + EPS).sqrt()
        return (wanted - mean) / std, mean, std


def num_heads(width: int) -> int:
    """The number of heads of a decoder of this width."""
    return max(1, width // HEAD_WIDTH)


def visible_places(hidden: Tensor, num: int) -> Tensor:
    """The places that are not hidden, in order."""
    is_hidden = torch.zeros(len(hidden), num, dtype=torch.bool, device=hidden.device).scatter(1, hidden, True)
    return is_hidden.to(torch.int8).argsort(dim=1, stable=True)[:, : num - hidden.shape[1]]


Objective = Mae
