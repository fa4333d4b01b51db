"""Which patches pretraining hides from a model, and what predicts them: its preparation and its objective."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import PositiveInt, model_validator

from vitrail.contract import Model
from vitrail.data.augment import Augment
from vitrail.data.masked_image import MaskedImagePreparation, PatchMasking
from vitrail.errors import SpecError
from vitrail.model.vit import VisionTransformer
from vitrail.objective.mae import HEAD_WIDTH, MIN_WIDTH, Mae, num_heads
from vitrail.objective.masked_image.base import MaskedImage
from vitrail.objective.masked_patches import MaskedPatches
from vitrail.spec import OpenFraction, Spec
from vitrail.tokens import format_size

MIN_PATCHES = 2
MAE_RATE, PAPER_RATE = 0.75, 0.5  # hidden patches in arXiv 2111.06377 and in arXiv 2010.11929


class MaskingSpec(Spec):
    """What is hidden and what is predicted; stored in config.yaml, so that a run can draw its reconstructions."""

    target: Literal["mae", "mean_colour", "downsized", "full_patch"] = "mae"
    """What is predicted of a hidden patch."""
    mask_rate: OpenFraction | None = None
    """The fraction of the patches that are hidden; None for 0.75 with mae, 0.5 otherwise."""
    decoder_width: PositiveInt = 128
    decoder_depth: PositiveInt = 2
    """The decoder of mae, which is not part of the pretrained model."""

    @model_validator(mode="after")
    def _check_width(self) -> Self:
        heads = num_heads(self.decoder_width)
        if self.decoder_width < MIN_WIDTH or self.decoder_width % 4 or self.decoder_width % heads:
            raise SpecError(
                f"the decoder has a head per {HEAD_WIDTH} channels, and sines and cosines as positions.",
                got=f"decoder_width={self.decoder_width}.",
                hint=f"a multiple of {HEAD_WIDTH}, such as decoder_width=128.",
            )
        return self

    @property
    def masking(self) -> PatchMasking:
        """MAE shows nothing at hidden places; masked patch prediction corrupts some."""
        is_mae = self.target == "mae"
        rate = (MAE_RATE if is_mae else PAPER_RATE) if self.mask_rate is None else self.mask_rate
        return PatchMasking(rate, corrupts=not is_mae)


def as_vision_transformer(model: Model) -> VisionTransformer:
    """Return the model if its patches can be hidden."""
    if not isinstance(model, VisionTransformer) or len(model.spec.image_size) != 2:
        raise SpecError(
            "pretraining hides patches, so it needs a Vision Transformer for images.",
            got=f"a {type(model).__name__}.",
            hint="--model with a name that starts with vit_ or deit_.",
        )
    return model


def build_objective(spec: MaskingSpec, model: Model) -> MaskedImage:
    """The objective for this model, with new parameters."""
    network = as_vision_transformer(model)
    cell, width, preprocess = network.spec.stem.cell, network.spec.width, network.preprocess
    if network.spec.layout.num_cells < MIN_PATCHES:
        raise SpecError(
            f"some patches are hidden and others are not, so an image needs at least {MIN_PATCHES}.",
            got=f"patches of {format_size(cell)} in images of {format_size(network.spec.image_size)} pixels.",
            hint="a model with smaller patches.",
        )
    if spec.target == "mae":
        attention = network.spec.attention
        if attention.needs_grid:
            raise SpecError(
                f"target=mae encodes only the visible patches, but {attention.name} attention needs the whole grid.",
                got=f"target=mae, attention={attention.name}.",
                hint="target=full_patch, or model.attention=full.",
            )
        return Mae(
            cell=cell,
            width=width,
            channels=network.spec.channels,
            decoder_width=spec.decoder_width,
            decoder_depth=spec.decoder_depth,
        )
    return MaskedPatches(target=spec.target, cell=cell, width=width, mean=preprocess.mean, std=preprocess.std)


def prepare_masked(spec: MaskingSpec, model: Model, augment: Augment | None = None) -> MaskedImagePreparation:
    """Images with hidden patches, as this model takes them."""
    network = as_vision_transformer(model)
    return MaskedImagePreparation(
        preprocess=network.preprocess, augment=augment, cell=network.spec.stem.cell, masking=spec.masking
    )
