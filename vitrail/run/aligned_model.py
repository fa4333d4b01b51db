"""A finished run that aligns several modalities: its towers, the preprocessing of each, and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail import plug
from vitrail.calibration import Calibration
from vitrail.data.aligned import TEXT
from vitrail.data.aligned_preparation import encode_texts, stack_texts
from vitrail.data.augment import Augment
from vitrail.data.preparation import InputPreprocess, Preparation
from vitrail.data.prepare.image import ImagePreparation
from vitrail.data.prepare.sound import SoundPreparation, SoundPreprocess
from vitrail.data.prepare.video import VideoPreparation, VideoPreprocess
from vitrail.data.text.tokenizer import FILE, Tokenizer, read_tokenizer
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, RunError
from vitrail.model.vatt import Vatt
from vitrail.run.artefact import ALIGNMENT, load_network, open_run
from vitrail.run.calibrate import read_calibration

PREPARATIONS = "vitrail.data.prepare"


class AlignedModel(NamedTuple):
    """The model of a run, in evaluation mode."""

    path: Path
    model: Vatt
    inputs: Mapping[str, InputPreprocess]
    """The preprocessing of each modality but text."""
    tokenizer: Tokenizer | None
    context: int
    calibration: Calibration
    """What makes probabilities of similarities divided by the temperature of training."""
    config: dict[str, Any]

    @property
    def modalities(self) -> tuple[str, ...]:
        """What it can compare."""
        return self.model.TAKES

    @property
    def temperature(self) -> float:
        """The temperature of training."""
        return float(self.config["request"]["settings"]["temperature"])

    def read(self, modality: str, content: Any, *, name: str) -> Any:
        """Read an image or a clip at the model's size, or the ids of a text."""
        if modality != TEXT:
            return self.inputs[modality].read(content, name=name)
        assert self.tokenizer is not None
        ids = encode_texts((content,), self.tokenizer, self.context)
        if not len(ids[0]):
            raise DataError("there is no text to compare with.", got=f"{name!r}.", hint="one word or more.")
        return ids

    @torch.inference_mode()
    def embed(self, modality: str, samples: Sequence[Any]) -> dict[str, Float[Tensor, "n D"]]:
        """The embeddings, in each common space, of what `read` returned."""
        if modality == TEXT:
            assert self.tokenizer is not None
            return self.model.embed(TEXT, stack_texts(samples, self.tokenizer.pad))
        return self.model.embed(modality, self.inputs[modality].normalise(np.stack(samples)))

    def require(self, modality: str) -> None:
        """Refuse a modality that it has no tower for."""
        if modality not in self.modalities:
            raise DataError(
                f"this run does not know {modality}s.",
                got=f"a run that aligns {' and '.join(self.modalities)}.",
                hint=f"{' or '.join(self.modalities)}.",
            )


def load_aligned(path: str | Path) -> AlignedModel:
    """Load a run that aligns modalities; a run of another kind is refused by name."""
    path = Path(path)
    config, _ = open_run(path)
    kind = str(config.get("kind", "classification"))
    if kind != ALIGNMENT:
        raise RunError(
            f"{path} is a run of another kind.",
            got=f"{kind.replace('_', ' ')}; this needs a run of the recipe align.",
            hint="vitrail train DATA --recipe align.",
        )
    model = load_network(path, config)
    assert isinstance(model, Vatt)
    try:
        stored = config["prepare"]
        inputs = {name: plug.load(PREPARATIONS, name).Spec.parse(fields) for name, fields in stored["inputs"].items()}
        context = int(stored["context"])
        float(config["request"]["settings"]["temperature"])
        if {*inputs, *([TEXT] if TEXT in model.TAKES else [])} != set(model.TAKES):
            raise ValueError("a modality without preprocessing")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"the files of the run in {path} are inconsistent.", got=f"{error!r}.") from None
    tokenizer = read_tokenizer(path / FILE) if TEXT in model.TAKES else None
    return AlignedModel(path, model, inputs, tokenizer, context, read_calibration(path), config)


def prepare_parts(
    inputs: Mapping[str, InputPreprocess], *, training: bool = False, augment: Augment | None = None
) -> dict[str, Preparation]:
    """The preparation of each modality but text."""
    parts: dict[str, Preparation] = {}
    for name, preprocess in inputs.items():
        if isinstance(preprocess, SoundPreprocess):
            parts[name] = SoundPreparation(preprocess=preprocess, training=training)
        elif isinstance(preprocess, VideoPreprocess):
            parts[name] = VideoPreparation(preprocess=preprocess, training=training)
        else:
            assert isinstance(preprocess, Preprocess)
            parts[name] = ImagePreparation(preprocess=preprocess, augment=augment)
    return parts
