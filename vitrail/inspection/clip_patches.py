"""How a model cuts a sound or a video into tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail import catalogue
from vitrail.data.media import modality_of
from vitrail.errors import DataError, InspectionError
from vitrail.inspection.patches import count_prefix, prefix_names, refuse_text
from vitrail.model import perceiver
from vitrail.run.artefact import is_run, load

EXAMPLES = {"sound": "vit_nano_patch80_sound8000", "video": "vit_nano_patch2x8_gap_video8x64"}
AXES = {"waveform": ("samples",), "spectrogram": ("bands", "frames"), "video": ("frames", "rows", "columns")}
PLURALS = {"sound": "sounds", "video": "videos", "image": "images"}


class ClipPatches(NamedTuple):
    """The part of a clip that a model takes, and the grid by which it is cut."""

    clip: str
    model: str
    modality: str
    """`sound` or `video`."""
    sample: NDArray[Any]
    """The waveform, or the frames [T Y X 3]."""
    inputs: NDArray[np.float32]
    """The model's input: the waveform, the spectrogram [bands frames] or the frames."""
    preprocess: Any
    grid: tuple[int, ...]
    patch: tuple[int, ...]
    """What one token covers: samples; bands and frames; or frames, rows and columns."""
    prefix: tuple[str, ...]
    """Tokens that stand before those of the clip."""
    cut: bool
    """Whether the input is cut as it is; otherwise convolutions come first, and a token stands for their outputs."""
    embedded: bool
    """Whether a patch is projected linearly; a Perceiver's latents read its samples as they are."""

    @property
    def form(self) -> str:
        """What is cut: `waveform`, `spectrogram` or `video`."""
        return "video" if self.modality == "video" else "waveform" if len(self.grid) == 1 else "spectrogram"

    @property
    def noun(self) -> str:
        """What the parts are called."""
        if self.form == "waveform" and self.num_numbers == 1:
            return "samples"
        return "cells" if not self.cut else "tubes" if self.modality == "video" else "patches"

    @property
    def singular(self) -> str:
        """What one of them is called."""
        return {"patches": "patch"}.get(self.noun, self.noun.removesuffix("s"))

    @property
    def parts(self) -> str:
        """The grid in words: 4 x 8 x 8 = 256 tubes of 2 frames x 8 rows x 8 columns."""
        count = f"{self.num_patches:,} {self.noun}"
        product = f"{' x '.join(map(str, self.grid))} = {count}" if len(self.grid) > 1 else count
        if self.noun == "samples":
            return product
        return f"{product} of {' x '.join(self.sides)}"

    @property
    def sides(self) -> list[str]:
        """The sides of a patch in words: 2 frames, 8 rows, 8 columns."""
        names = zip(self.patch, AXES[self.form], strict=True)
        return [f"{side} {name.removesuffix('s') if side == 1 else name}" for side, name in names]

    @property
    def as_inputs(self) -> str:
        """What a Perceiver reads, in words."""
        if self.noun == "samples":
            return "Each sample is an input: its value and the Fourier features of its time."
        place = "time" if self.form == "waveform" else "position"
        return f"Each {self.singular} is an input: its values as they are, and the Fourier features of its {place}."

    @property
    def token_seconds(self) -> float:
        """The time that one token covers."""
        return float(self.preprocess.seconds) / self.grid[-1 if self.modality == "sound" else 0]

    @property
    def token_duration(self) -> str:
        """The same in words: 10 ms."""
        return f"{self.token_seconds:.3g} s" if self.token_seconds >= 1 else f"{1000 * self.token_seconds:.3g} ms"

    @property
    def num_patches(self) -> int:
        """The number of tokens with a place in the clip."""
        return math.prod(self.grid)

    @property
    def num_tokens(self) -> int:
        """The number of all tokens."""
        return len(self.prefix) + self.num_patches

    @property
    def num_numbers(self) -> int:
        """The numbers in a patch."""
        return math.prod(self.patch) * int(self.preprocess.channels)

    @property
    def prefix_groups(self) -> list[str]:
        """The tokens before those of the clip, counted."""
        return count_prefix(self.prefix)


def cut_clip(clip: str | Path, model: str | Path) -> ClipPatches:
    """Cut a clip as a model of the catalogue, or that of a run, does."""
    own = modality_of(str(clip)) or "sound"
    if is_run(model):
        refuse_text(model, PLURALS[own])
        opened = load(model)
        spec, preprocess = opened.spec, opened.about.preprocess
    else:
        spec = catalogue.spec_named(str(model))
        preprocess = catalogue.preprocess_for(str(model), spec, None)
    if getattr(preprocess, "modality", "image") not in ("sound", "video"):
        raise InspectionError(
            f"{model} does not cut {PLURALS[own]}.",
            got=f"a model that takes {' and '.join(spec.takes)}.",
            hint=f"{EXAMPLES[own]}.",
        )
    check_modality(str(clip), preprocess)
    return new_patches(Path(clip), str(clip), str(model), spec, preprocess)


def new_patches(content: Path | bytes, clip: str, model: str, spec: Any, preprocess: Any) -> ClipPatches:
    """Read a clip as a model takes it, and cut it."""
    sample = preprocess.read(content, name=clip)
    inputs = preprocess.normalise(sample[None]).numpy()[0]
    stem = getattr(spec, "stem", None)
    if stem is None and not isinstance(spec, perceiver.Spec):
        raise InspectionError(f"{model} does not cut clips into tokens.", got="a model without tokens.")
    return ClipPatches(
        clip=clip,
        model=model,
        modality=preprocess.modality,
        sample=sample,
        inputs=inputs if preprocess.modality == "video" else inputs[0],
        preprocess=preprocess,
        grid=spec.layout.grid,
        patch=spec.cell,
        prefix=() if stem is None else prefix_names(spec),
        cut=stem is None or stem.name == "patch",
        embedded=stem is not None,
    )


def check_modality(name: str, preprocess: Any) -> None:
    """Refuse a file of another modality by its name; a video has a sound too."""
    own, wanted = modality_of(name), preprocess.modality
    if own in (None, wanted, "video"):
        return
    raise DataError(
        f"this model takes {PLURALS[wanted]}, not {PLURALS[own]}.", got=f"{name}.", hint=f"the path of a {wanted}."
    )
