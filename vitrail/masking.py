"""Which patches pretraining hides from a model, and what predicts them: its preparation and its objective."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from vitrail.contract import Model
from vitrail.data.augment import Augment
from vitrail.data.masked_image import MaskedImagePreparation, PatchMasking
from vitrail.errors import SpecError
from vitrail.model.vit import VisionTransformer
from vitrail.objective.mae import Mae
from vitrail.objective.masked_image.base import MaskedImage
from vitrail.objective.masked_patches import MaskedPatches
from vitrail.spec import OpenFraction, Spec

MASK_RATES = {"mae": 0.75}  # MAE's paper; half of the patches otherwise


class MaskingSpec(Spec):
    """What is hidden and what is predicted; stored in config.yaml, so that a run can draw its reconstructions."""

    target: Literal["mae", "mean_colour", "downsized", "full_patch"] = "mae"
    mask_rate: OpenFraction = 0.75
    decoder_width: PositiveInt = 128
    decoder_depth: PositiveInt = 2

    @property
    def masking(self) -> PatchMasking:
        """MAE shows nothing at hidden places; masked patch prediction corrupts some."""
        return PatchMasking(self.mask_rate, corrupts=self.target != "mae")


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
    if spec.target == "mae":
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
