"""VATT: a transformer for each modality, and common spaces where they are compared (Akbari et al., arXiv 2104.11178).

Each modality has a tower, a whole backbone of this folder, so that pretrained weights load into it; or all share the
blocks of the first. Projections map their outputs to common spaces (section 3.3): images or video meet sound in a fine
one, and a further map leads from there to a coarse one, where they meet text. In training, DropToken (section 3.2)
removes random tokens of all modalities but text.

VATT normalises projections over the batch; here each embedding is normalised by itself (LayerNorm), so that it does not
depend on the other samples or on the number of processes.
"""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import BeforeValidator, Field, PositiveInt, SerializeAsAny, ValidationInfo, model_validator
from torch import Tensor, nn

from vitrail import contract, plug, spec
from vitrail.errors import ShapeError, SpecError, unknown_name
from vitrail.nn.head import mean_of_cells
from vitrail.tokens import Tokens

FAMILIES = "vitrail.model"
TEXT = "text"
ANCHORS = ("video", "image")
"""The modalities that all others are compared with, by preference; without them, the first that is not text."""
FINE, COARSE, COMMON = "fine", "coarse", "common"
BLOCK_FIELDS = ("width", "depth", "heads", "hidden")
SHARING_FAMILIES = ("vit", "language")
DEFAULTS = {"num_classes": 0, "causal": False}
"""What a tower has, if its family has such a field: no classifier, and every token of a text sees all others."""


def parse_tower(value: object, info: ValidationInfo) -> object:
    """Validate the specification of a tower by the `Spec` of its family."""
    family = info.data.get("family")
    if family is None:
        return value  # the family's own error comes first
    own = plug.load(FAMILIES, family).Spec
    if isinstance(value, own):
        return value
    if not isinstance(value, dict):
        raise SpecError("the spec of a tower is a mapping.", got=f"{value!r}.", hint=f"fields of model/{family}.py.")
    return own.parse({name: each for name, each in DEFAULTS.items() if name in own.model_fields} | value)


BackboneSpec = Annotated[SerializeAsAny[spec.Spec], BeforeValidator(parse_tower)]


class TowerSpec(spec.Spec):
    """The backbone of one modality."""

    name: Literal["image", "video", "sound", "text"]
    """The field of a batch that it takes."""
    family: str
    """The file of `model/`: `language` for text, `vit` for all others."""
    spec: BackboneSpec
    """The fields of the family's specification."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        is_text, backbone = self.name == TEXT, self.backbone
        takes_grid = isinstance(backbone, contract.ImageSpec) and len(backbone.takes) == 1
        fits = hasattr(backbone, "causal") if is_text else takes_grid
        if not fits:
            raise SpecError(
                f"a tower of this family does not take {self.name}.",
                got=f"name={self.name}, family={self.family}.",
                hint=f"family={'language' if is_text else 'vit'}.",
            )
        for name, wanted in {**DEFAULTS, "pre_logits": None}.items():
            if getattr(backbone, name, wanted) != wanted:
                raise SpecError(
                    "a tower returns the features of all it sees, without a head.",
                    got=f"{name}={getattr(backbone, name)} for {self.name}.",
                    hint=f"{name}={'null' if wanted is None else wanted}.",
                )
        return self

    @property
    def backbone(self) -> Any:
        """The specification, of whatever family."""
        return self.spec


class Spec(spec.Spec):
    """Everything that determines what VATT computes."""

    towers: tuple[TowerSpec, ...] = Field(min_length=2)
    shared: bool = False
    """Whether all modalities share the blocks of the first tower."""
    hierarchical: bool = True
    """Whether the modalities besides text, if there are several, have a space of their own before they meet text."""
    all_pairs: bool = False
    """Whether the loss compares every modality with every other; otherwise with the first one only, as in VATT."""
    embed_width: PositiveInt = 128
    """The width of the common spaces."""
    drop_token_rate: spec.PartialFraction = 0.0
    """The fraction of the cells of images, video and sound that training leaves out (DropToken)."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if len(set(self.takes)) < len(self.takes):
            raise SpecError(
                "each modality has one tower.", got=f"{', '.join(self.takes)}.", hint="a different name for each tower."
            )
        if self.shared:
            self._check_shared()
        for tower in self.towers:
            attention: Any = getattr(tower.backbone, "attention", None)
            if self.drop_token_rate and getattr(attention, "needs_grid", False):
                raise SpecError(
                    "DropToken leaves gaps in the grid, which this attention cannot handle.",
                    got=f"drop_token_rate={self.drop_token_rate}, attention={attention.name} for {tower.name}.",
                    hint="drop_token_rate=0 or attention=full.",
                )
        return self

    def _check_shared(self) -> None:
        """Reject towers that cannot have the same blocks."""
        for tower in self.towers:
            if tower.family not in SHARING_FAMILIES:
                raise SpecError(
                    "this family cannot share its blocks.",
                    got=f"shared=True, family={tower.family} for {tower.name}.",
                    hint="family=vit, or shared=False.",
                )
            attention = getattr(getattr(tower.backbone, "attention", None), "name", "full")
            if attention != "full" or tower.backbone.position.startswith("rotary"):
                raise SpecError(
                    "blocks of several modalities have full attention, and positions are added before them.",
                    got=f"shared=True, attention={attention}, position={tower.backbone.position} for {tower.name}.",
                    hint="attention=full and position=learned, or shared=False.",
                )
        for one, other in combinations(self.towers, 2):
            for name in BLOCK_FIELDS:
                sizes = getattr(one.backbone, name), getattr(other.backbone, name)
                if sizes[0] != sizes[1]:
                    raise SpecError(
                        f"towers that share their blocks have the same {name}.",
                        got=f"{name}={sizes[0]} for {one.name}, {name}={sizes[1]} for {other.name}.",
                        hint=f"{name}={sizes[0]} for both, or shared=False.",
                    )

    @property
    def takes(self) -> tuple[str, ...]:
        """The fields of a batch that it takes."""
        return tuple(tower.name for tower in self.towers)

    @property
    def text(self) -> str | None:
        """The name of the tower of text, if there is one."""
        return TEXT if TEXT in self.takes else None

    @property
    def pad(self) -> int:
        """The id of padding in texts."""
        return next((tower.backbone.pad for tower in self.towers if tower.name == TEXT), 0)

    @property
    def anchor(self) -> str:
        """The modality that all others are compared with."""
        others = [name for name in self.takes if name != TEXT]
        return next((name for name in ANCHORS if name in others), others[0])

    @property
    def levels(self) -> tuple[str, ...]:
        """The common spaces, the finest first."""
        return (FINE, COARSE) if self.hierarchical and self.text and len(self.towers) > 2 else (COMMON,)

    def levels_of(self, name: str) -> tuple[str, ...]:
        """The common spaces that a modality is mapped to: text only to the last."""
        return self.levels[-1:] if name == TEXT else self.levels

    def level_between(self, one: str, other: str) -> str:
        """The finest space that two modalities have in common."""
        return self.levels[-1 if TEXT in (one, other) else 0]

    @property
    def outputs(self) -> tuple[tuple[str, str], ...]:
        """The embeddings that `forward` returns, each as its tower and its space; text is the last."""
        found = [(name, self.levels[0]) for name in self.takes if name != TEXT]
        if self.text:
            meeting = [name for name in self.takes if name != TEXT] if self.all_pairs else [self.anchor]
            found += [(name, self.levels[-1]) for name in (*meeting, TEXT)]
        return tuple(dict.fromkeys(found))

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Which outputs the loss compares: the anchor with each other modality (equations 2 and 3), or all of them."""
        names = sorted(self.takes, key=lambda name: (name == TEXT, name != self.anchor))  # text last, as in the outputs
        found = []
        for one, other in combinations(names, 2):
            if one == self.anchor or self.all_pairs:
                level = self.level_between(one, other)
                found.append((self.outputs.index((one, level)), self.outputs.index((other, level))))
        return tuple(found)


class Vatt(contract.Model):
    """`forward` returns the embeddings of each sample in all modalities, in the order of `spec.outputs`."""

    spec: Spec

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec, self.TAKES = spec, spec.takes
        self.towers = nn.ModuleDict(
            {tower.name: plug.load(FAMILIES, tower.family).Model(tower.backbone) for tower in spec.towers}
        )
        if spec.shared:
            first, *others = self.towers.values()
            for tower in others:
                del tower.blocks
                tower.__dict__["blocks"] = first.blocks  # not a submodule: the first tower has it
        self.project = nn.ModuleDict(
            {tower.name: self._new_projection(tower.name, tower.backbone.width) for tower in spec.towers}
        )
        width, num_levels = spec.embed_width, len(spec.levels)
        self.coarsen = None if num_levels == 1 else nn.Sequential(nn.ReLU(), *_normed_linear(width, width))
        self.reset_parameters()

    def _new_projection(self, name: str, width: int) -> nn.Sequential:
        """Two layers for images and video, one for all others."""
        embed_width = self.spec.embed_width
        if name not in ANCHORS:
            return nn.Sequential(*_normed_linear(width, embed_width))
        return nn.Sequential(*_normed_linear(width, embed_width), nn.ReLU(), *_normed_linear(embed_width, embed_width))

    def reset_parameters(self) -> None:
        """Initialise the projections so that they keep the scale of their inputs; towers initialise themselves."""
        for projection in self.heads:
            for module in projection.modules():
                if isinstance(module, nn.Linear):
                    nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
                    nn.init.zeros_(module.bias)

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """The projections."""
        return (*self.project.values(), *(() if self.coarsen is None else (self.coarsen,)))

    def _tower(self, name: str) -> Any:
        if name not in self.towers:
            raise unknown_name("tower", name, self.TAKES)
        return self.towers[name]

    def tokenize(self, name: str, x: Tensor) -> Tokens:
        """The tokens of one modality."""
        tokens: Tokens = self._tower(name).tokenize(x)
        if tokens.mask is None:
            return tokens
        # A text without tokens is a missing one; it has to attend to something, or its embedding would not be finite.
        is_first = torch.arange(tokens.x.shape[1], device=tokens.x.device) == 0
        return tokens._replace(mask=tokens.mask | (is_first & ~tokens.mask.any(dim=1, keepdim=True)))

    def drop_tokens(self, name: str, tokens: Tokens) -> Tokens:
        """DropToken: in training, keep random cells; text is short, and keeps all."""
        rate, num = self.spec.drop_token_rate, tokens.layout.num_cells
        if not self.training or not rate or name == TEXT:
            return tokens
        order = torch.rand(tokens.x.shape[0], num, device=tokens.x.device).argsort(dim=1)
        return tokens.keep(order[:, : max(1, round(num * (1 - rate)))])

    def encode(self, name: str, tokens: Tokens) -> Tokens:
        """Apply the blocks of one modality."""
        return self._tower(name).encode(tokens)

    def pool(self, name: str, tokens: Tokens) -> Float[Tensor, "B D"]:
        """Pool encoded tokens to one vector per sample: as the backbone does, or the mean of a text's tokens."""
        tower = self._tower(name)
        return mean_of_cells(tokens) if name == TEXT else tower.pool(tokens)

    def features(self, name: str, x: Tensor) -> Float[Tensor, "B D"]:
        """The output of one tower, before it is mapped to a common space."""
        return self.pool(name, self.encode(name, self.drop_tokens(name, self.tokenize(name, x))))

    def embed(self, name: str, x: Tensor) -> dict[str, Float[Tensor, "B *P D"]]:
        """The embeddings of one modality, of length one, in each space that it is mapped to.

        Texts may have several candidates per sample, [B P N].
        """
        if name == TEXT and x.ndim == 3:
            found = self.embed(name, x.flatten(0, 1))
            return {level: embedding.reshape(*x.shape[:2], embedding.shape[-1]) for level, embedding in found.items()}
        features = self.features(name, x)
        embedding = self.project[name](features)
        found = {self.spec.levels_of(name)[0]: embedding}
        if self.coarsen is not None and name != TEXT:
            found[COARSE] = self.coarsen(embedding)
        return {level: _normalise(embedding) for level, embedding in found.items()}

    def forward(self, *inputs: Tensor) -> Float[Tensor, "B S D"]:
        """Embed all modalities; the last rows are those of the candidate texts."""
        if len(inputs) != len(self.TAKES):
            raise ShapeError(
                f"the model takes {' and '.join(self.TAKES)}.",
                got=f"{len(inputs)} inputs.",
                hint="one tensor for each, in this order.",
            )
        found = {name: self.embed(name, x) for name, x in zip(self.TAKES, inputs, strict=True)}
        rows = [found[name][level] for name, level in self.spec.outputs]
        return torch.cat([row if row.ndim == 3 else row[:, None] for row in rows], dim=1)

    def flops(self) -> int:
        """Count twice the multiply-adds for inputs of the specified size, one text of full length, nothing dropped."""
        total: int = sum(tower.flops() for tower in self.towers.values())  # type: ignore[operator]
        for tower in self.spec.towers:
            total += 2 * _matrix_size(self.project[tower.name])
            if tower.name == TEXT:  # without logits
                total -= 2 * tower.backbone.context * tower.backbone.vocab * tower.backbone.width
            elif self.coarsen is not None:
                total += 2 * _matrix_size(self.coarsen)
        return total


def _normed_linear(width: int, embed_width: int) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(width, embed_width), nn.LayerNorm(embed_width)


def _normalise(x: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    """Scale to length one, in float32 at least."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


def _matrix_size(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


Model = Vatt
