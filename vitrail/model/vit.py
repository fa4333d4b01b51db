"""The Vision Transformer (Dosovitskiy et al., arXiv 2010.11929, equations 1 to 4) and its variants.

DeiT (arXiv 2012.12877) adds a distillation token, "registers" (arXiv 2309.16588) add tokens without a place, DINOv3
(arXiv 2508.10104) rotates queries and keys by their places. Parameter names are timm's. The sizes and families of the
catalogue are at the end of the file.
"""

from __future__ import annotations

import re
from typing import Any, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from vitrail import plug, spec
from vitrail.contract import ImageSpec, PatchClassifier
from vitrail.errors import SpecError
from vitrail.nn.attention import full
from vitrail.nn.block import MlpKind
from vitrail.nn.dot_product import check_heads
from vitrail.nn.encoder import build_encoder
from vitrail.nn.head import AttentionPool, PreLogits, mean_of_cells
from vitrail.nn.position import Position, ResizeRule, check_position, fixed_table, resize_table
from vitrail.nn.qkv import QkvBias
from vitrail.nn.rotary import Rotary2d, check_rotary
from vitrail.stem import patch
from vitrail.tokens import Layout, Tokens, check_input, cut

STEMS, ATTENTIONS = "vitrail.stem", "vitrail.nn.attention"


class Spec(ImageSpec):
    """Everything that determines what a Vision Transformer computes."""

    image_size: spec.SizeNd = (224, 224)
    """Rows and columns, or one number for both; a list of one for sound, of three (frames first) for video."""
    input_name: Literal["image", "sound", "video"] = "image"
    """The field of a batch that it takes; a spectrogram is `sound` with rows and columns."""
    channels: PositiveInt = 3
    num_classes: NonNegativeInt = 1000
    stem: spec.registry_field(STEMS) = patch.Spec()  # type: ignore[valid-type]
    width: PositiveInt = 768
    depth: PositiveInt = 12
    heads: PositiveInt = 12
    hidden: PositiveInt = 3072
    mlp: MlpKind = "mlp"
    """`swiglu` is a gated MLP, which has no `activation` to choose."""
    attention: spec.registry_field(ATTENTIONS) = full.Spec()  # type: ignore[valid-type]
    class_token: bool = True
    distilled: bool = False
    registers: NonNegativeInt = 0
    position: Position = "learned"
    resize_rule: ResizeRule = "bicubic"
    position_prefix: NonNegativeInt | None = None
    """The number of prefix tokens with a row in the learned table; None means all. DINOv2's registers have no row."""
    pool: Literal["token", "mean", "attention"] = "token"
    norm_after_pool: bool = False
    pre_logits: PositiveInt | None = None
    qkv_bias: QkvBias = True
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    norm_eps: PositiveFloat = 1e-6
    layer_scale: PositiveFloat | None = None
    dropout_rate: float = Field(0.0, ge=0.0, lt=1.0)
    drop_path_rate: float = Field(0.0, ge=0.0, lt=1.0)
    init_std: NonNegativeFloat = 0.02

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        check_heads(self.width, self.heads)
        grid = cut(self.image_size, self.stem.cell)
        check_position(self.position, grid)
        self.attention.check_grid(grid)
        check_rotary(self.position, self.width, self.heads)
        if self.mlp == "swiglu" and self.activation != "gelu":
            raise SpecError(
                "a gated MLP has its own activation.", got=f"mlp=swiglu, activation={self.activation}.", hint="mlp=mlp."
            )
        if self.pool == "token" and not self.class_token:
            raise SpecError("pool=token needs a class token.", got="class_token=False.", hint="pool=mean.")
        if self.distilled and not (self.class_token and self.pool == "token"):
            raise SpecError(
                "a distilled model needs a class token and pool=token.",
                got=f"distilled=True, class_token={self.class_token}, pool={self.pool}.",
                hint="class_token=True pool=token.",
            )
        if (self.position_prefix or 0) > self.num_prefix:
            raise SpecError(
                "position_prefix exceeds the number of prefix tokens.",
                got=f"position_prefix={self.position_prefix}, {self.num_prefix} prefix tokens.",
                hint=f"position_prefix={self.num_prefix}.",
            )
        return self

    @property
    def takes(self) -> tuple[str, ...]:
        """The field of a batch that it takes."""
        return (self.input_name,)

    @property
    def cell(self) -> tuple[int, ...]:
        """The part of an input that a token stands for."""
        return self.stem.cell

    @property
    def num_prefix(self) -> int:
        """The number of tokens before those of the grid."""
        return self.class_token + self.distilled + self.registers

    @property
    def layout(self) -> Layout:
        """The layout of the tokens of an input of `image_size`."""
        return Layout(cut(self.image_size, self.cell), self.num_prefix)

    @property
    def table_layout(self) -> Layout:
        """The layout of the learned position table, which may lack rows for some prefix tokens."""
        prefix = self.num_prefix if self.position_prefix is None else self.position_prefix
        return Layout(self.layout.grid, prefix)


class VisionTransformer(PatchClassifier):
    """Patch embedding, positions, encoder blocks and head: `forward` is `classify(encode(tokenize(image)))`."""

    pos_fixed: Tensor | None

    spec: Spec

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec, self.TAKES = spec, spec.takes
        width = spec.width
        self.patch_embed = plug.load(STEMS, spec.stem.name).Stem(spec.stem, channels=spec.channels, width=width)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width)) if spec.class_token else None
        self.dist_token = nn.Parameter(torch.empty(1, 1, width)) if spec.distilled else None
        self.reg_token = nn.Parameter(torch.empty(1, spec.registers, width)) if spec.registers else None
        learned = spec.position == "learned"
        self.pos_embed = nn.Parameter(torch.empty(1, spec.table_layout.num_tokens, width)) if learned else None
        self.register_buffer("pos_fixed", fixed_table(spec.position, spec.layout.grid, width), persistent=False)
        rotary = spec.position == "rotary_2d"
        self.rotary = Rotary2d(layout=spec.layout, width=width // spec.heads) if rotary else None
        self.pos_drop = nn.Dropout(spec.dropout_rate)
        self.blocks: nn.Sequential = build_encoder(
            self._new_attention,
            depth=spec.depth,
            width=width,
            hidden=spec.hidden,
            norm_eps=spec.norm_eps,
            mlp=spec.mlp,
            activation=spec.activation,
            dropout_rate=spec.dropout_rate,
            drop_path_rate=spec.drop_path_rate,
            layer_scale=spec.layer_scale,
        )
        self.norm = nn.Identity() if spec.norm_after_pool else nn.LayerNorm(width, eps=spec.norm_eps)
        self.attn_pool = None
        if spec.pool == "attention":
            self.attn_pool = AttentionPool(
                width=width, heads=spec.heads, hidden=spec.hidden, norm_eps=spec.norm_eps, activation=spec.activation
            )
        self.fc_norm = nn.LayerNorm(width, eps=spec.norm_eps) if spec.norm_after_pool else nn.Identity()
        self.pre_logits = PreLogits(width=width, hidden=spec.pre_logits) if spec.pre_logits else nn.Identity()
        self.head = self._classifier(spec.num_classes)
        self.head_dist = self._classifier(spec.num_classes) if spec.distilled else None
        self.reset_parameters()

    def _new_attention(self) -> nn.Module:
        spec = self.spec
        return plug.load(ATTENTIONS, spec.attention.name).Attention(
            spec.attention,
            width=spec.width,
            heads=spec.heads,
            bias=spec.qkv_bias,
            rotary=self.rotary,
            dropout_rate=spec.dropout_rate,
        )

    def _classifier(self, num_classes: int) -> nn.Module:
        return nn.Linear(self.spec.pre_logits or self.spec.width, num_classes) if num_classes else nn.Identity()

    def reset_parameters(self) -> None:
        """Initialise with small random matrices, zero biases and a zero head: all classes start equally likely."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=self.spec.init_std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for table in (self.pos_embed, self.cls_token, self.dist_token, self.reg_token):
            if table is not None:
                nn.init.trunc_normal_(table, std=self.spec.init_std)
        for head in (self.head, self.head_dist):
            if isinstance(head, nn.Linear):
                nn.init.zeros_(head.weight)

    def replace_head(self, num_classes: int) -> None:
        """Replace the classifier by a zero-initialised one, as the paper does for fine-tuning."""
        like = next(self.parameters())
        self.spec = self.spec.override({"num_classes": num_classes})
        for name in ("head", "head_dist")[: 1 + self.spec.distilled]:
            head = self._classifier(num_classes).to(like.device, like.dtype)
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
            setattr(self, name, head)

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """The classifier and, if any, that of the distillation token."""
        return (self.head,) if self.head_dist is None else (self.head, self.head_dist)

    @property
    def first_weight(self) -> str:
        """The name of the weight that is applied to the input channels."""
        return next(name for name in self.state_dict() if name.startswith("patch_embed."))

    def position_table(self, grid: tuple[int, ...]) -> Float[Tensor, "1 N D"] | None:
        """Return the positions to add for this grid: the learned table, resized if necessary, or a fixed one."""
        if self.pos_embed is not None:
            old = self.spec.table_layout
            return resize_table(self.pos_embed, old, Layout(grid, old.prefix), self.spec.resize_rule)
        if self.pos_fixed is None or grid == self.spec.layout.grid:
            return self.pos_fixed
        return fixed_table(self.spec.position, grid, self.spec.width)

    def cell_positions(self, grid: tuple[int, ...]) -> Float[Tensor, "N D"]:
        """The positions that are added to the cells of this grid; zeros if none are."""
        table, num = self.position_table(grid), Layout(grid).num_cells
        return torch.zeros(num, self.spec.width) if table is None else table[0, -num:]

    def tokenize(self, image: Float[Tensor, "B C *size"]) -> Tokens:
        """z_0 = [x_class; x_p E] + E_pos (equation 1)."""
        check_input(image, self.spec.channels, len(self.spec.image_size))
        tokens = self.patch_embed(image)
        cells, layout = tokens.x, tokens.layout
        learned = [token for token in (self.cls_token, self.dist_token, self.reg_token) if token is not None]
        expanded = [token.expand(image.shape[0], -1, -1) for token in learned]
        prefix = torch.cat(expanded, dim=1) if expanded else cells[:, :0]
        table = self.position_table(layout.grid)
        if table is not None:
            table = table.to(cells)
            num_rows = table.shape[1] - layout.num_cells  # for prefix tokens
            cells = cells + table[:, num_rows:]
            prefix = torch.cat([prefix[:, :num_rows] + table[:, :num_rows], prefix[:, num_rows:]], dim=1)
        return Tokens(torch.cat([prefix, cells], dim=1), Layout(layout.grid, self.spec.num_prefix))

    def encode(self, tokens: Tokens) -> Tokens:
        """Apply the blocks (equations 2 and 3) and the last normalisation (equation 4)."""
        tokens = self.blocks(tokens.with_x(self.pos_drop(tokens.x)))
        return tokens.with_x(self.norm(tokens.x))

    def pool(self, tokens: Tokens) -> Float[Tensor, "B D"]:
        """Pool the tokens to one vector per image."""
        if self.attn_pool is not None:
            pooled = self.attn_pool.pool(tokens)
        elif self.spec.pool == "mean":
            pooled = mean_of_cells(tokens)
        else:
            pooled = tokens.x[:, 0]
        return self.fc_norm(pooled)

    def classify_each(self, tokens: Tokens) -> tuple[Float[Tensor, "B K"], ...]:
        """Compute the logits of each head: the class token's and, if any, the distillation token's."""
        logits = self.head(self.pre_logits(self.pool(tokens)))
        return (logits,) if self.head_dist is None else (logits, self.head_dist(tokens.x[:, 1]))

    def classify(self, tokens: Tokens) -> Float[Tensor, "B K"]:
        """Compute the logits, averaged over the heads."""
        each = self.classify_each(tokens)
        return each[0] if len(each) == 1 else (each[0] + each[1]) / 2

    def flops(self) -> int:
        """Count twice the multiply-adds for one input of `image_size`, without elementwise operations, as usual."""
        spec, layout = self.spec, self.spec.layout
        total: int = self.patch_embed.flops(spec.image_size)
        for block in self.blocks:
            total += 2 * layout.num_tokens * _matrix_size(block) + block.attn.mixing_flops(layout)  # type: ignore[union-attr,operator]
        if self.attn_pool is not None:
            # There is one query: projections and MLP act on one token, keys and values on all.
            keys = self.attn_pool.kv.weight.numel()
            total += 2 * (_matrix_size(self.attn_pool) - keys) + 2 * layout.num_tokens * keys
            total += 4 * layout.num_tokens * spec.width
        heads = [self.pre_logits, self.head] + ([self.head_dist] if self.head_dist is not None else [])
        return total + 2 * sum(_matrix_size(head) for head in heads)


def _matrix_size(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


Model = VisionTransformer

# Width, depth, heads, hidden width. `mu` is for tests, `so400m` is SigLIP's shape-optimised size (arXiv 2305.13035),
# the `plus` sizes and `7b` are DINOv3's, with a gated MLP.
SIZES = {
    "mu": (32, 2, 2, 128),
    "nano": (128, 4, 4, 256),
    "tiny": (192, 12, 3, 768),
    "small": (384, 12, 6, 1536),
    "medium": (512, 12, 8, 2048),
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
    "huge": (1280, 32, 16, 5120),
    "giant": (1408, 40, 16, 6144),
    "gigantic": (1664, 48, 16, 8192),
    "so400m": (1152, 27, 16, 4304),
    "small_plus": (384, 12, 6, 1536),
    "huge_plus": (1280, 32, 20, 5120),
    "7b": (4096, 40, 32, 8192),
}
GATED = ("small_plus", "huge_plus", "7b")
HYBRIDS = {
    "r_s16_p8": {"name": "hybrid", "layers": (), "patch": 8},
    "r26_s32": {"name": "hybrid", "layers": (2, 2, 2, 2)},
    "r50_s16": {"name": "hybrid", "layers": (3, 4, 9)},
    "r50_s32": {"name": "hybrid", "layers": (3, 4, 6, 3)},
}
GRAMMAR = re.compile(
    rf"(?P<family>vit|deit)_(?P<size>{'|'.join(SIZES)})(?P<distilled>_distilled)?"
    rf"_(?:patch(?P<patch>[0-9]{{1,3}}(?:x[0-9]{{1,3}}){{0,2}})|conv(?P<conv>1|2|4|8|16)|(?P<hybrid>{'|'.join(HYBRIDS)}))(?:_reg(?P<registers>[0-9]{{1,3}}))?"
    r"(?:_(?P<variant>gap|siglip|dinov2|dinov3|dinov3_qkvb))?"
    r"(?:_(?P<input>sound|mel|video)?(?P<image>[0-9]{1,6}(?:x[0-9]{1,5}){0,2}))?"
)
INPUTS = {None: ("image", 3, 2), "sound": ("sound", 1, 1), "mel": ("sound", 1, 2), "video": ("video", 3, 3)}
"""By the word before the size: the field of a batch, its channels and its dimensions; `mel` is a spectrogram."""
DINOV3 = {
    "registers": 4,
    "position": "rotary_2d",
    "pool": "mean",  # timm's choice; the paper's and transformers' is the class token
    "qkv_bias": False,
    "norm_eps": 1e-5,
    "layer_scale": 1e-5,
    "num_classes": 0,
    "image_size": 256,
}
VARIANTS: dict[str | None, dict[str, Any]] = {
    None: {},
    "gap": {"class_token": False, "pool": "mean", "norm_after_pool": True, "position_prefix": 0},
    "siglip": {"class_token": False, "pool": "attention", "num_classes": 0},
    "dinov2": {"layer_scale": 1e-5, "num_classes": 0, "image_size": 518},
    "dinov3": DINOV3,
    "dinov3_qkvb": {**DINOV3, "qkv_bias": "qv"},
}


def conv_stem(cell: int, width: int) -> dict[str, Any]:
    """Specify a stem of 3 x 3 convolutions for cells of this size; channels double at each step, up to the width."""
    num_halvings = cell.bit_length() - 1
    full_size = num_halvings <= 2  # small images get one convolution at full resolution
    strides = [1] * full_size + [2] * num_halvings
    channels = [max(8, width >> (len(strides) - 1 - index)) for index in range(len(strides))]
    return {
        "name": "conv",
        "channels": channels,
        "strides": strides,
        "units": [int(index > 0) for index in range(len(strides))],
    }


def parse_size(text: str, num_dims: int) -> list[int]:
    """Read a size such as `224`, `40x96` or `8x64`; the last number is repeated for dimensions that have none."""
    sides = [int(side) for side in text.split("x")]
    return (sides + sides[-1:] * num_dims)[: max(num_dims, len(sides))]


def spec_named(name: str) -> Spec | None:
    """Return the specification for a name such as `vit_base_patch16_224`, or None for a name of another family."""
    match = GRAMMAR.fullmatch(name)
    if match is None or not (match["image"] or "image_size" in VARIANTS[match["variant"]]):
        return None
    width, depth, heads, hidden = SIZES[match["size"]]
    field, channels, num_dims = INPUTS[match["input"]]
    fields: dict[str, Any] = {"width": width, "depth": depth, "heads": heads, "hidden": hidden}
    fields.update(input_name=field, channels=channels)
    if match["hybrid"]:
        fields["stem"] = HYBRIDS[match["hybrid"]]
    elif match["conv"]:
        # For small data: a convolutional stem, and mean pooling instead of a class token.
        fields.update(VARIANTS["gap"], stem=conv_stem(int(match["conv"]), width))
    else:
        fields["stem"] = {"name": "patch", "patch": parse_size(match["patch"], num_dims)}
    if match["size"] in GATED:
        fields["mlp"] = "swiglu"
    fields["distilled"] = match["distilled"] is not None
    fields.update(VARIANTS[match["variant"]])
    if match["registers"]:
        # Registers have no row in the position table; timm folds the class token's row into the token.
        fields.update(registers=int(match["registers"]), position_prefix=0)
    if match["variant"] == "gap" and match["size"] == "medium":
        fields["layer_scale"] = 1e-5  # timm's base size has no layer scale
    if match["image"]:
        fields["image_size"] = parse_size(match["image"], num_dims)
    return Spec.parse(fields)
