"""The model as it leaves: pixels in, logits and calibrated confidence out, everything between them in one graph."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import ExportError
from vitrail.nn.attention.full import Attention
from vitrail.nn.last import LastBlock
from vitrail.nn.merge import MergingBlocks
from vitrail.run.predictor import calibration_of
from vitrail.tokens import Layout, cut

Takes = Literal["uint8", "float"]
CUBIC = -0.5  # the free number of the cubic kernel, as PyTorch has it with antialiasing


class Graph(nn.Module):
    """`uint8` pixels come as decoders give them, [batch, rows, columns, channels]; `float` ones as [batch, channels,
    rows, columns] from 0 to 1. Mean and deviation are inside, and so is the temperature.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any, *, takes: Takes = "uint8") -> None:
        super().__init__()
        self.model, self.takes = model, takes
        calibration = calibration_of(model)
        self.temperature, self.multi_label = calibration.temperature, calibration.multi_label
        preprocess = model.preprocess
        self.register_buffer("mean", torch.tensor(preprocess.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(preprocess.std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        if self.takes == "uint8":
            pixels = pixels.permute(0, 3, 1, 2).float() / 255
        images = (pixels - self.mean) / self.std
        logits = self.model(images.to(next(self.model.parameters()).dtype)).float()
        scaled = logits / self.temperature
        return logits, scaled.sigmoid() if self.multi_label else scaled.softmax(dim=1)

    def example(self, num: int, size: tuple[int, int]) -> Tensor:
        """Pixels of the right kind."""
        channels = self.model.preprocess.channels
        if self.takes == "uint8":
            return torch.zeros(num, *size, channels, dtype=torch.uint8)
        return torch.zeros(num, channels, *size)


def at_size(model: Any, size: tuple[int, int]) -> Any:
    """A copy of a model for pictures of another size."""
    model = copy.deepcopy(model).eval()
    if hasattr(model.spec, "stem"):
        table = model.position_table(cut(size, model.spec.stem.cell))
        if table is not None:
            name = "pos_embed" if model.pos_embed is not None else "pos_fixed"
            kept = table.detach().clone()
            setattr(model, name, nn.Parameter(kept, requires_grad=False) if name == "pos_embed" else kept)
    model.spec = model.spec.override({"image_size": size})
    model.preprocess = model.preprocess.override({"size": size})
    return model


def leaving(model: Any, *, merge: int = 0, dynamic: bool = False) -> Any:
    """A copy of a model that computes what its head reads and no more; with `merge` so many cells a block become one,
    with `dynamic` it takes any size that its patches divide.
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    if merge:
        _merge(model, merge, dynamic=dynamic)
    elif getattr(model.spec, "pool", "") == "token" and _is_full(model.blocks[-1].attn):
        model.blocks[-1] = LastBlock(model.blocks[-1], 1 + model.spec.distilled)
    if dynamic and hasattr(model.spec, "stem"):
        _take_any_size(model)
    return model


def _is_full(attention: Any) -> bool:
    return type(attention) is Attention and not attention.causal


def _merge(model: Any, num: int, *, dynamic: bool) -> None:
    if not hasattr(model, "blocks") or dynamic:
        raise ExportError(
            "tokens are merged in a Vision Transformer of one size.",
            got="--dynamic." if dynamic else f"{type(model).__name__}.",
            hint="leaving out --merge.",
        )
    model.blocks = MergingBlocks(model.blocks, num)


def _take_any_size(model: Any) -> None:
    if model.pos_embed is not None:
        old, table, rule = model.spec.table_layout, model.pos_embed, model.spec.resize_rule
        model.position_table = lambda grid: resized_in_graph(table, old, grid, rule)
    elif model.pos_fixed is not None:
        raise ExportError(
            "a table of sines cannot be resized in the graph.",
            got=f"position={model.spec.position}.",
            hint="--size ROWSxCOLUMNS.",
        )


def resized_in_graph(
    table: Float[Tensor, "1 N D"], old: Layout, grid: tuple[Any, ...], rule: str
) -> Float[Tensor, "1 M D"]:
    """`resize_table` for a grid that is not known yet: a matrix for rows and one for columns, of plain arithmetic.

    Engines differ in what they call bicubic with antialiasing, but not in how they multiply matrices.
    """
    prefix, cells = table[:, : old.prefix], table[0, old.prefix :]
    rows, columns = old.grid
    image = cells.view(rows, columns, -1)  # Y X D
    along_rows, along_columns = (
        resize_matrix(num, new, rule).to(table) for num, new in zip((rows, columns), grid, strict=True)
    )
    image = torch.tensordot(along_rows, image, dims=([1], [0]))  # y X D
    image = torch.tensordot(along_columns, image, dims=([1], [1])).transpose(0, 1)  # y x D
    return torch.cat([prefix, image.reshape(1, grid[0] * grid[1], -1)], dim=1)


def resize_matrix(old: int, new: Any, rule: str) -> Float[Tensor, "new old"]:
    """How much of each old place each new one takes; rows sum to one."""
    places = torch.arange(old, dtype=torch.float32)[None]
    wanted = torch.arange(new, dtype=torch.float32)[:, None]
    if rule == "zoom":  # bilinear, corners stay corners
        steps = torch.sym_max(new - 1, 1)  # type: ignore[no-untyped-call]
        weight = (1 - (places - wanted * ((old - 1) / steps)).abs()).clamp(min=0.0)
    else:
        scale = old / new
        # A smaller table is averaged over more places.
        wide = torch.sym_max(scale, 1.0)  # type: ignore[no-untyped-call]
        distance = ((places + 0.5 - (wanted + 0.5) * scale) / wide).abs()
        near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1
        far = ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC
        weight = torch.where(distance < 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))
    return weight / weight.sum(dim=1, keepdim=True)
