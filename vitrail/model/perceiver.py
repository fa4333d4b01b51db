"""The Perceiver (Jaegle et al., arXiv 2103.03206): a few learned latents read any number of inputs by cross-attention.

Inputs are single pixels or samples of sound: their channels, and Fourier features of their positions. With `patch`,
neighbours are one input together, as the samples of raw sound are in the paper; nothing is embedded or convolved.
Each stage is a cross-attention from latents to inputs and a stack of self-attention blocks among latents (figure 1), so
time and memory are linear in the number of inputs. As in the paper, stages share their weights, except that the first
cross-attention has its own, and queries, keys and values of cross-attention are as wide as an input.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Self

import torch
from jaxtyping import Float
from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)
from torch import Tensor, nn

from vitrail import spec
from vitrail.contract import Classifier, ImageSpec
from vitrail.errors import ShapeError, SpecError
from vitrail.nn.attention.full import Attention, CrossAttention
from vitrail.nn.block import Block
from vitrail.nn.dot_product import check_heads
from vitrail.nn.encoder import build_encoder
from vitrail.nn.fourier import fourier_positions, fourier_width
from vitrail.nn.head import mean_of_cells
from vitrail.tokens import Layout, Tokens, check_input, cut, format_size

FieldName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
Sides = Annotated[tuple[PositiveInt, ...], Field(max_length=3)]
MIN_MODALITY_WIDTH = 4
"""Of the learned embedding that tells the widest of several inputs from the others."""
LATENT_STD = 0.02


class InputSpec(spec.Spec):
    """One input: the field of a batch that it is, its channels, and its size in one to three dimensions."""

    name: FieldName
    channels: PositiveInt = 1
    size: spec.SizeNd
    patch: Sides = ()
    """The neighbours that are one input together, along each axis; by default each is its own."""
    resolution: Sides = ()
    """The size at which the highest frequency of its positions has a period of two tokens; by default `size`."""

    @field_validator("patch", "resolution", mode="before")
    @classmethod
    def _repeat(cls, value: object, info: ValidationInfo) -> object:
        return to_sides(value, info.data.get("size"))

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        pin_resolution(self, self.size)
        cut(self.size, self.cell)
        return self

    @property
    def cell(self) -> tuple[int, ...]:
        """The part of the input that one token covers."""
        return self.patch or (1,) * len(self.size)

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of tokens along each axis."""
        return cut(self.size, self.cell)

    @property
    def token_resolution(self) -> tuple[float, ...]:
        """The number of tokens along each axis at the size of `resolution`."""
        return tuple(side / cell for side, cell in zip(self.resolution, self.cell, strict=True))


def to_sides(value: object, size: tuple[int, ...] | None) -> object:
    """Let a single number stand for every axis of the input; by default, there are no sides."""
    if type(value) is int:
        return (value,) * len(size or (value,))
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else value


def pin_resolution(owner: InputSpec | Spec, size: tuple[int, ...]) -> None:
    """Set the resolution to the size unless it is set: it stays when the size is overridden later, as weights do."""
    if not owner.resolution:
        object.__setattr__(owner, "resolution", size)  # specifications are frozen once they are checked
    if len(owner.resolution) != len(size):
        raise SpecError(
            "resolution needs a number for each dimension of an input.",
            got=f"resolution {format_size(owner.resolution)}, size {format_size(size)}.",
            hint=f"resolution={list(size)}.",
        )


class Spec(ImageSpec):
    """Everything that determines what a Perceiver computes."""

    image_size: spec.SizeNd = (224, 224)
    """Of the first input, in one to three dimensions."""
    channels: PositiveInt = 3
    num_classes: NonNegativeInt = 1000
    input_name: FieldName = "image"
    """The field of a batch that the first input is."""
    patch: Sides = ()
    """Of the first input: the neighbours that are one input together, along each axis; by default each is its own."""
    resolution: Sides = ()
    """The size at which the highest frequency of its positions has a period of two tokens; by default `image_size`."""
    more_inputs: tuple[InputSpec, ...] = ()
    """Further inputs."""
    bands: PositiveInt = 64
    """The number of frequencies along each axis."""
    num_latents: PositiveInt = 512
    width: PositiveInt = 1024
    num_stages: PositiveInt = 8
    """The number of cross-attentions, each of which is followed by `depth` blocks."""
    depth: PositiveInt = 6
    heads: PositiveInt = 8
    hidden: PositiveInt = 1024
    cross_heads: PositiveInt = 1
    cross_width: PositiveInt | None = None
    """Of the queries, keys and values of cross-attention; None for the width of an input."""
    share_weights: bool = True
    """Whether all stages have the same weights, except the first cross-attention."""
    dropout_rate: spec.PartialFraction = 0.0
    norm_eps: PositiveFloat = 1e-5

    @field_validator("patch", "resolution", mode="before")
    @classmethod
    def _repeat(cls, value: object, info: ValidationInfo) -> object:
        return to_sides(value, info.data.get("image_size"))

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        pin_resolution(self, self.image_size)
        cut(self.image_size, self.cell)
        check_heads(self.width, self.heads)
        if len(set(self.takes)) < len(self.takes):
            raise SpecError(
                "each input has a name of its own.",
                got=f"{', '.join(self.takes)}.",
                hint="another name in more_inputs.",
            )
        check_heads(self.inner_width, self.cross_heads, prefix="cross_")
        return self

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """All inputs."""
        first = InputSpec(
            name=self.input_name,
            channels=self.channels,
            size=self.image_size,
            patch=self.patch,
            resolution=self.resolution,
        )
        return (first, *self.more_inputs)

    @property
    def cell(self) -> tuple[int, ...]:
        """The part of the first input that one token covers."""
        return self.patch or super().cell

    @property
    def takes(self) -> tuple[str, ...]:
        """The fields of a batch that it takes."""
        return (self.input_name, *(each.name for each in self.more_inputs))

    @property
    def layout(self) -> Layout:
        """The grid of the only input, or the number of all inputs."""
        if not self.more_inputs:
            return Layout(cut(self.image_size, self.cell))
        return Layout((sum(Layout(each.grid).num_cells for each in self.inputs),))

    @property
    def latent_layout(self) -> Layout:
        """The latents are a row without an order."""
        return Layout((self.num_latents,))

    @property
    def modality_widths(self) -> dict[str, int]:
        """The width of the embedding that brings each of several inputs to the same width."""
        return {each.name: self.input_width - self._own_width(each) for each in self.inputs}

    @property
    def input_width(self) -> int:
        """The number of values of one token: channels, position and, if there are several inputs, modality."""
        widest = max(self._own_width(each) for each in self.inputs)
        return widest + (MIN_MODALITY_WIDTH if self.more_inputs else 0)

    def _own_width(self, each: InputSpec) -> int:
        return each.channels * math.prod(each.cell) + fourier_width(len(each.size), self.bands)

    @property
    def inner_width(self) -> int:
        """The width of the queries, keys and values of cross-attention."""
        return self.cross_width or self.input_width


class Perceiver(Classifier):
    """Latents read the inputs, several times; `forward` is `classify(encode(tokenize(*inputs)))`."""

    spec: Spec

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec, self.TAKES, self.inputs = spec, spec.takes, spec.inputs
        self.modality = nn.ParameterDict()
        if spec.more_inputs:
            widths = spec.modality_widths
            self.modality.update({name: nn.Parameter(torch.empty(width)) for name, width in widths.items()})
        self.input_norm = nn.LayerNorm(spec.input_width, eps=spec.norm_eps)
        self.latents = nn.Parameter(torch.empty(1, spec.num_latents, spec.width))
        num_cross = min(2, spec.num_stages) if spec.share_weights else spec.num_stages
        self.cross = nn.ModuleList(self._new_cross_block() for _ in range(num_cross))
        self.blocks = build_encoder(
            lambda: Attention(width=spec.width, heads=spec.heads, dropout_rate=spec.dropout_rate),
            depth=spec.depth if spec.share_weights else spec.depth * spec.num_stages,
            width=spec.width,
            hidden=spec.hidden,
            norm_eps=spec.norm_eps,
            dropout_rate=spec.dropout_rate,
        )
        self.norm = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        self.head = self._new_head()
        self.reset_parameters()

    def _new_cross_block(self) -> Block:
        spec = self.spec
        attention = CrossAttention(
            width=spec.width,
            heads=spec.cross_heads,
            context_width=spec.input_width,
            inner_width=spec.inner_width,
            dropout_rate=spec.dropout_rate,
        )
        return Block(
            attention, width=spec.width, hidden=spec.hidden, norm_eps=spec.norm_eps, dropout_rate=spec.dropout_rate
        )

    def _new_head(self) -> nn.Module:
        """Build a zero-initialised classifier."""
        if not self.spec.num_classes:
            return nn.Identity()
        head = nn.Linear(self.spec.width, self.spec.num_classes)
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        return head

    def reset_parameters(self) -> None:
        """Initialise so that each linear layer keeps the scale of its inputs; latents as in the paper."""
        for module in (*self.cross.modules(), *self.blocks.modules()):
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
                nn.init.zeros_(module.bias)
        for table in (self.latents, *self.modality.values()):
            nn.init.trunc_normal_(table, std=LATENT_STD)

    def replace_head(self, num_classes: int) -> None:
        """Replace the classifier by a zero-initialised one for `num_classes` classes."""
        self.spec = self.spec.override({"num_classes": num_classes})
        self.head = self._new_head().to(self.latents)

    @property
    def first_weight(self) -> str:
        """The name of the weight that is applied to the input channels."""
        return "cross.0.attn.kv.weight"

    def tokenize(self, *inputs: Float[Tensor, "B C *size"]) -> Tokens:
        """One token per pixel, sample or patch: its values, its position's features and, if several, its modality."""
        if len(inputs) != len(self.TAKES):
            raise ShapeError(
                f"the model takes {' and '.join(self.TAKES)}.",
                got=f"{len(inputs)} inputs.",
                hint="one tensor for each, in this order.",
            )
        parts = [self._to_tokens(own, each) for own, each in zip(self.inputs, inputs, strict=True)]
        if len(parts) == 1:
            return parts[0]
        x = torch.cat([tokens.x for tokens in parts], dim=1)
        return Tokens(x, Layout((x.shape[1],)))

    def _to_tokens(self, own: InputSpec, x: Float[Tensor, "B C *size"]) -> Tokens:
        """The tokens of one input, at any size."""
        check_input(x, own.channels, len(own.size))
        grid = cut(tuple(x.shape[2:]), own.cell)
        positions = fourier_positions(grid, bands=self.spec.bands, resolution=own.token_resolution, device=x.device)
        rows = [positions.flatten(0, -2).to(x.dtype)[None].expand(x.shape[0], -1, -1)]
        if own.name in self.modality:
            rows.append(self.modality[own.name].to(x.dtype).expand(x.shape[0], rows[0].shape[1], -1))
        return Tokens(torch.cat([_cut_input(x, grid, own.cell), *rows], dim=2), Layout(grid))

    def iter_blocks(self) -> Iterator[Block]:
        """The blocks in the order in which they are applied; shared ones come several times."""
        for stage in range(self.spec.num_stages):
            yield self.cross[min(stage, len(self.cross) - 1)]  # type: ignore[misc]
            start = 0 if self.spec.share_weights else stage * self.spec.depth
            yield from islice(self.blocks, start, start + self.spec.depth)

    def encode(self, tokens: Tokens) -> Tokens:
        """The latents after all stages; `tokens.mask` hides padding from them."""
        inputs = tokens.with_x(self.input_norm(tokens.x))
        latents = Tokens(self.latents.expand(tokens.x.shape[0], -1, -1), self.spec.latent_layout)
        last: Block | None = None
        for block in self.iter_blocks():
            if not isinstance(block.attn, CrossAttention):
                latents = block(latents)
                continue
            if block is not last:  # a shared one reads the inputs once
                last, context = block, block.attn.read(inputs)
            latents = block(latents, context)
        return latents.with_x(self.norm(latents.x))

    def pool(self, tokens: Tokens) -> Float[Tensor, "B D"]:
        """Average the latents."""
        return mean_of_cells(tokens)

    def flops(self) -> int:
        """Count twice the multiply-adds for inputs of the specified size, without elementwise operations, as usual."""
        num_inputs, latents = self.spec.layout.num_tokens, self.spec.latent_layout
        total = 2 * self.spec.width * self.spec.num_classes
        seen: set[nn.Module] = set()
        for block in self.iter_blocks():
            matrices = sum(part.weight.numel() for part in block.modules() if isinstance(part, nn.Linear))
            if isinstance(block.attn, CrossAttention):
                keys_and_values = block.attn.kv.weight.numel()
                matrices -= keys_and_values
                total += 0 if block in seen else 2 * num_inputs * keys_and_values
                total += 4 * latents.num_tokens * num_inputs * self.spec.inner_width
                seen.add(block)
            else:
                total += block.attn.mixing_flops(latents)  # type: ignore[operator]
            total += 2 * latents.num_tokens * matrices
        return total


def _cut_input(
    x: Float[Tensor, "B C *size"], grid: tuple[int, ...], cell: tuple[int, ...]
) -> Float[Tensor, "B N values"]:
    """The values of each patch, channel by channel; a patch of one is a pixel or a sample with its channels."""
    sides = [side for pair in zip(grid, cell, strict=True) for side in pair]
    split = x.reshape(x.shape[0], x.shape[1], *sides)
    places, inside = range(2, split.ndim, 2), range(3, split.ndim, 2)
    return split.permute(0, *places, 1, *inside).flatten(1, len(grid)).flatten(2)


Model = Perceiver

# `mu` is for tests, `nano` for small images on a few cores, `base` is the paper's for ImageNet. Small ones have several
# cross-attention heads, so that a latent reads several places at once.
FIELDS = ("num_latents", "width", "num_stages", "depth", "heads", "hidden", "bands", "cross_heads", "cross_width")
SIZES = {
    "mu": (8, 32, 2, 1, 2, 64, 4),
    "nano": (48, 96, 2, 2, 4, 192, 12, 4, 64),
    "tiny": (96, 192, 4, 3, 6, 384, 24, 4, 96),
    "base": (512, 1024, 8, 6, 8, 1024, 64),
}
GRAMMAR = re.compile(
    rf"perceiver_(?P<size>{'|'.join(SIZES)})_(patch(?P<patch>[0-9]{{1,4}})_)?(?P<sound>sound)?(?P<image>[0-9]{{1,6}})"
)


def spec_named(name: str) -> Spec | None:
    """The specification for a name such as `perceiver_nano_28` or `perceiver_nano_patch64_sound8000`, or None."""
    match = GRAMMAR.fullmatch(name)
    if match is None:
        return None
    fields: dict[str, Any] = dict(zip(FIELDS, SIZES[match["size"]], strict=False))
    if match["sound"]:
        fields |= {"input_name": "sound", "channels": 1}
    for key, number in (("image_size", match["image"]), ("patch", match["patch"])):
        if number:
            fields[key] = [int(number)] if match["sound"] else int(number)
    return Spec.parse(fields)
