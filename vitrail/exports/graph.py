"""The model as it is exported: pixels in, logits and calibrated confidence out, everything between in one graph."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.contract import Classifier
from vitrail.errors import ExportError
from vitrail.model.vit import VisionTransformer
from vitrail.nn.attention.full import Attention
from vitrail.nn.block import Block
from vitrail.nn.conv import StdConv
from vitrail.nn.last_block import LastBlock
from vitrail.nn.merge import MergingBlocks
from vitrail.run.predictor import calibration_of
from vitrail.tokens import Layout, cut

InputDtype = Literal["uint8", "float"]
CUBIC_A = -0.5  # the cubic kernel's parameter, as PyTorch sets it with antialiasing


class Graph(nn.Module):
    """Takes `uint8` pixels as decoders return them, [batch, rows, columns, channels], or `float` ones from 0 to 1 as
    [batch, channels, rows, columns]. Applies mean, standard deviation and temperature.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: Classifier, *, input_dtype: InputDtype = "uint8") -> None:
        super().__init__()
        self.model, self.input_dtype = model, input_dtype
        calibration = calibration_of(model)
        self.temperature, self.multi_label = calibration.temperature, calibration.multi_label
        preprocess = model.preprocess
        self.register_buffer("mean", torch.tensor(preprocess.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(preprocess.std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        if self.input_dtype == "uint8":
            pixels = pixels.permute(0, 3, 1, 2).float() / 255
        images = (pixels - self.mean) / self.std
        logits = self.model(images.to(next(self.model.parameters()).dtype)).float()
        scaled = logits / self.temperature
        return logits, scaled.sigmoid() if self.multi_label else scaled.softmax(dim=1)

    def example(self, batch_size: int, size: tuple[int, int]) -> Tensor:
        """Blank input of the right shape and dtype."""
        channels = self.model.preprocess.channels
        if self.input_dtype == "uint8":
            return torch.zeros(batch_size, *size, channels, dtype=torch.uint8)
        return torch.zeros(batch_size, channels, *size)


def resize_model(model: Classifier, size: tuple[int, int]) -> Classifier:
    """A copy of a model for images of another size."""
    model = copy.deepcopy(model).eval()
    if isinstance(model, VisionTransformer):
        grid = cut(size, model.spec.stem.cell)
        table = model.position_table(grid)
        if model.rotary is not None:
            model.rotary.fit(Layout(grid, model.spec.num_prefix))
        if table is not None:
            name = "pos_embed" if model.pos_embed is not None else "pos_fixed"
            table = table.detach().clone()
            setattr(model, name, nn.Parameter(table, requires_grad=False) if name == "pos_embed" else table)
    model.spec = model.spec.override({"image_size": size})
    model.describe(preprocess=model.preprocess.override({"size": size}))
    return model


def prepare_for_export(model: Classifier, *, merge: int = 0, dynamic: bool = False) -> Classifier:
    """A copy of a model that computes only what its head reads.

    With `merge`, each block merges that many pairs of patch tokens. With `dynamic`, it takes any image size that the
    patch size divides.
    """
    model = copy.deepcopy(model).eval().requires_grad_(False)
    for layer in model.modules():
        if isinstance(layer, StdConv):
            layer.fix()
    if merge:
        _merge_tokens(model, merge, dynamic=dynamic)
    elif isinstance(model, VisionTransformer) and model.spec.pool == "token":
        last = model.blocks[-1]
        if isinstance(last, Block) and _has_full_attention(last):
            model.blocks[-1] = LastBlock(last, 1 + model.spec.distilled)
    if dynamic and isinstance(model, VisionTransformer):
        _resize_positions_in_graph(model)
    mix, attention = (getattr(model.spec, name, None) for name in ("mix", "attention"))
    if dynamic and mix is not None and mix.name != "conv":
        raise ExportError(
            "a ResNet with attention is exported for a fixed image size.",
            got=f"--dynamic, mix={mix.name}.",
            hint="--size ROWSxCOLUMNS.",
        )
    if dynamic and attention is not None and not attention.any_size:
        raise ExportError(
            f"a model with {attention.name} attention is exported for a fixed image size.",
            got=f"--dynamic, attention={attention.name}.",
            hint="--size ROWSxCOLUMNS.",
        )
    return model


def _has_full_attention(block: Block) -> bool:
    return type(block.attn) is Attention and not block.attn.causal


def _merge_tokens(model: Classifier, num_pairs: int, *, dynamic: bool) -> None:
    if not isinstance(model, VisionTransformer) or dynamic:
        raise ExportError(
            "--merge works only for Vision Transformers of a fixed image size.",
            got="--dynamic." if dynamic else f"{type(model).__name__}.",
            hint="without --merge.",
        )
    if model.rotary is not None:
        raise ExportError(
            "--merge does not work with rotary positions: a merged token has no place of its own.",
            got=f"position={model.spec.position}.",
            hint="without --merge.",
        )
    model.blocks = MergingBlocks(model.blocks, num_pairs)


def _resize_positions_in_graph(model: VisionTransformer) -> None:
    if model.pos_embed is not None:
        old, table, rule = model.spec.table_layout, model.pos_embed, model.spec.resize_rule
        model.position_table = lambda grid: resize_table_in_graph(table, old, grid, rule)  # type: ignore[method-assign]
    elif model.rotary is not None:
        model.rotary.layout = None  # the angles are computed in the graph
    elif model.pos_fixed is not None:
        raise ExportError(
            "sine position embeddings cannot be resized in the graph.",
            got=f"position={model.spec.position}.",
            hint="--size ROWSxCOLUMNS.",
        )


def resize_table_in_graph(
    table: Float[Tensor, "1 N D"], old: Layout, grid: tuple[Any, ...], rule: str
) -> Float[Tensor, "1 M D"]:
    """`resize_table` for a grid that is known only at run time: one matrix for rows, one for columns.

    Engines disagree on bicubic resizing with antialiasing, but not on matrix products.
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
    """The weight of each old position in each new one; rows sum to one."""
    old_places = torch.arange(old, dtype=torch.float32)[None]
    new_places = torch.arange(new, dtype=torch.float32)[:, None]
    if rule == "zoom":  # bilinear with aligned corners
        steps = torch.sym_max(new - 1, 1)  # type: ignore[no-untyped-call]
        weight = (1 - (old_places - new_places * ((old - 1) / steps)).abs()).clamp(min=0.0)
    else:
        scale = old / new
        # Antialiasing: a smaller table averages over more positions.
        support = torch.sym_max(scale, 1.0)  # type: ignore[no-untyped-call]
        distance = ((old_places + 0.5 - (new_places + 0.5) * scale) / support).abs()
        near = ((CUBIC_A + 2) * distance - (CUBIC_A + 3)) * distance * distance + 1
        far = ((CUBIC_A * distance - 5 * CUBIC_A) * distance + 8 * CUBIC_A) * distance - 4 * CUBIC_A
        weight = torch.where(distance < 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))
    return weight / weight.sum(dim=1, keepdim=True)
