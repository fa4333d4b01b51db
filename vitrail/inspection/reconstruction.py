"""What a pretrained model expects behind hidden patches: the image as it saw it, its reconstruction, the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from vitrail import catalogue
from vitrail.data.decode import Pixels
from vitrail.data.masked_image import MaskedRows, MaskedSample
from vitrail.data.rng import make_rng
from vitrail.errors import RunError, SpecError, brief
from vitrail.masking import MaskingSpec, as_vision_transformer, build_objective, prepare_masked
from vitrail.model.vit import VisionTransformer
from vitrail.nn.patches import cut_patches, join_patches
from vitrail.objective.masked_image.base import MaskedImage
from vitrail.run.artefact import load, open_run
from vitrail.run.directory import CONFIG
from vitrail.run.fit import check_numbers, check_shapes
from vitrail.sums import check_sum
from vitrail.weights import tensor_files

DECODER = "decoder.safetensors"
GREY = 128  # of hidden patches


class Pretrained(NamedTuple):
    """A pretrained model, and what predicts the patches that are hidden from it."""

    model: VisionTransformer
    objective: MaskedImage
    masking: MaskingSpec


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """An image with hidden patches, the prediction for them, and the original."""

    masked: Pixels
    predicted: Pixels
    original: Pixels
    loss: float
    """On the hidden patches."""
    hidden: float
    """The fraction of the patches that are hidden."""


def write_decoder(path: Path, objective: MaskedImage) -> None:
    """Write the parameters of the objective."""
    state = {name: parameter.detach().contiguous() for name, parameter in objective.named_parameters()}
    tensor_files.write_tensors(state, path / DECODER)


def open_pretrained(path: str | Path) -> Pretrained:
    """Open a finished pretraining run."""
    path = Path(path)
    config, _ = open_run(path)
    model = as_vision_transformer(load(path))
    masking = _read_masking(path, config)
    check_sum(path / DECODER, RunError)
    shapes = tensor_files.read_shapes(path / DECODER)
    check_numbers(masking.model_dump(mode="json"), shapes, path / CONFIG, "masking")
    with catalogue.on_meta():
        expected = dict(build_objective(masking, model).named_parameters())
    check_shapes(expected, shapes, path / CONFIG, "masking")
    objective = build_objective(masking, model)
    try:
        objective.load_state_dict({**objective.state_dict(), **tensor_files.read_tensors(path / DECODER)})
    except RuntimeError as error:
        raise RunError(f"{path / DECODER} does not fit the run.", got=brief(error), hint="another run.") from None
    return Pretrained(model, objective.eval(), masking)


def _read_masking(path: Path, config: Mapping[str, Any]) -> MaskingSpec:
    try:
        return MaskingSpec.parse(config["masking"])
    except (KeyError, TypeError, SpecError) as error:
        raise RunError(f"the files of the run in {path} are inconsistent.", got=f"{error!r}.") from None


@torch.inference_mode()
def reconstruct(pretrained: Pretrained, pixels: Pixels, *, seed: int = 0) -> Reconstruction:
    """Hide patches of an image of the model's size, chosen by the seed, and predict them."""
    model, objective, masking = pretrained
    prepare = prepare_masked(masking, model)
    hidden, shown = masking.masking._replace(corrupts=False).draw(
        prepare.num_patches, make_rng("masks", seed=seed, epoch=0)
    )
    rows = MaskedRows(prepare.preprocess, 1, len(hidden))
    rows.put(0, MaskedSample(pixels, hidden, shown))
    fields = rows.stack()
    predicted = objective.predict(model, fields).float()
    loss = objective.compare(predicted, fields).mean().item()
    patches = cut_patches(fields["image"], prepare.cell)
    patches[0, hidden] = objective.draw(predicted, fields)[0]
    grid = model.spec.layout.grid
    mean, std = (torch.tensor(each)[:, None, None] for each in (prepare.preprocess.mean, prepare.preprocess.std))
    values = join_patches(patches, grid)[0] * std + mean
    drawing = (values.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    masked = cut_patches(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None], prepare.cell)
    masked[0, hidden] = GREY
    return Reconstruction(
        masked=join_patches(masked, grid)[0].permute(1, 2, 0).numpy(),
        predicted=drawing,
        original=pixels,
        loss=loss,
        hidden=len(hidden) / prepare.num_patches,
    )


def as_image(pixels: Pixels, side: int) -> Image.Image:
    """An image for a page, enlarged without smoothing if it is smaller than `side`."""
    image = Image.fromarray(np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels)
    factor = max(1, side // max(image.size))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
