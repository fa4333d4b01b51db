"""Sound: a segment of a clip as its waveform or as a log-mel spectrogram; randomly chosen and masked in training.

Masking bands of frequencies and of time is SpecAugment's (arXiv 1904.08779, section 2), without its time warping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from vitrail import spec
from vitrail.batch import Fields
from vitrail.data.media import MAX_RATE, Clip, MediaContent
from vitrail.data.mix import mix_fields
from vitrail.data.reader import read_content
from vitrail.data.sound import MAX_SECONDS, Waveform, read_sound
from vitrail.data.spectrogram import MAX_MELS, MelBank, log_mel, mel_bank
from vitrail.data.table import Item, Source
from vitrail.errors import SpecError

FIELDS = ("sound",)
MAX_GAIN = 6.0  # decibels, up or down
MASKED_FREQUENCIES = MASKED_TIME = 0.2  # the largest fraction of a spectrogram that each mask hides


class Spec(spec.Spec):
    """How a clip of sound becomes the input of a model."""

    modality: ClassVar[str] = "sound"
    channels: ClassVar[int] = 1

    rate: Annotated[PositiveInt, Field(le=MAX_RATE)] = 16_000
    """Samples per second; clips of another rate are resampled."""
    seconds: Annotated[float, Field(gt=0.0, le=MAX_SECONDS)] = 1.0
    """The length of the segment that the model hears; shorter clips are padded with zeros."""
    mels: Annotated[NonNegativeInt, Field(le=MAX_MELS)] = 0
    """The bands of a log-mel spectrogram; 0 for the waveform."""
    window: Annotated[float, Field(gt=0.0, le=1.0)] = 0.025
    """The length of a frame of the spectrogram in seconds."""
    hop: Annotated[float, Field(gt=0.0, le=1.0)] = 0.010
    """The seconds from one frame of the spectrogram to the next."""

    @model_validator(mode="after")
    def _check_frames(self) -> Self:
        if not self.num_samples:
            got = f"rate={self.rate}, seconds={self.seconds}."
            raise SpecError("rate times seconds must be at least one sample.", got=got)
        if not self.mels:
            return self
        if not 0 < self._samples(self.hop) <= min(self._samples(self.window), self.num_samples):
            raise SpecError(
                "hop must be at least one sample, and at most window and seconds.",
                got=f"hop={self.hop}, window={self.window}, seconds={self.seconds}, rate={self.rate}.",
                hint=f"hop={self.window * 0.4:g}." if self.window < self.hop else "",
            )
        self._bank()
        return self

    @classmethod
    def of_size(cls, size: tuple[int, ...]) -> Self:
        """The preprocessing for a model's input: samples, or bands and frames."""
        default = cls()
        if len(size) == 1:
            return cls.parse({"seconds": size[0] / default.rate})
        return cls.parse({"mels": size[0], "seconds": size[1] * default.hop})

    def with_size(self, size: tuple[int, ...]) -> Self:
        """The same at its own rate, as long as a model's input of this size."""
        num_samples = size[1] * self._samples(self.hop) if self.mels else size[0]
        return self.override({"seconds": num_samples / self.rate})

    def whole_cells(self, cell: tuple[int, ...]) -> Self:
        """The same, at least as long, in a size that these cells divide."""
        if not self.mels:
            num = -(-self.num_samples // cell[0]) * cell[0]
            return self.override({"seconds": num / self.rate})
        num = max(1, -(-self.size[1] // cell[1])) * cell[1]
        mels = -(-self.mels // cell[0]) * cell[0]
        return self.override({"mels": mels, "seconds": num * self._samples(self.hop) / self.rate})

    @property
    def num_samples(self) -> int:
        """The samples of a segment."""
        return round(self.rate * self.seconds)

    @property
    def size(self) -> tuple[int, ...]:
        """The samples of a waveform, or the bands and frames of a spectrogram."""
        if not self.mels:
            return (self.num_samples,)
        return self.mels, self.num_samples // self._samples(self.hop)

    def read(self, content: MediaContent, *, name: str = "the clip") -> Waveform:
        """The waveform in the middle of a clip."""
        return read_sound(content, rate=self.rate, start=None, seconds=self.seconds, name=name)

    def empty_batch(self, num: int) -> Float[Tensor, "B 1 ..."]:
        """An uninitialised batch."""
        return torch.from_numpy(np.empty((num, self.channels, *self.size), dtype=np.float32))

    def normalise(
        self, batch: Float[np.ndarray, "B n"], *, out: Float[Tensor, "B 1 ..."] | None = None
    ) -> Float[Tensor, "B 1 ..."]:
        """Waveforms as the model takes them: divided by their RMS; or as spectrograms of mean 0 and variance 1."""
        out = self.empty_batch(len(batch)) if out is None else out
        # With NumPy, because PyTorch would start threads of its own in each loader thread.
        for row, waveform in zip(out.numpy(), batch, strict=True):
            if self.mels:
                row[0] = log_mel(waveform, self._bank(), window=self._samples(self.window), hop=self._samples(self.hop))
            else:
                row[0] = waveform / max(float(np.sqrt(np.mean(np.square(waveform, dtype=np.float64)))), TINY)
        return out

    def _samples(self, seconds: float) -> int:
        return round(self.rate * seconds)

    def _bank(self) -> MelBank:
        return mel_bank(self.rate, self.mels, self._samples(self.window))


SoundPreprocess = Spec
TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class SoundPreparation:
    """The preprocessing of a model and, for training, random segments, gains and masks. Samples are its inputs."""

    preprocess: Spec
    training: bool = False
    mixup: float = 0.0
    """The parameter of mixup's Beta distribution (arXiv 1710.09412); 0 is off."""
    repeats: int = 1
    draws: int = 0

    @property
    def varies(self) -> bool:
        """Whether segments are random."""
        return self.training

    @property
    def group(self) -> int:
        """Two if clips are mixed in pairs."""
        return 2 if self.training and self.mixup > 0 else 1

    def reader(self, source: Source) -> Callable[[Item], Clip | NDArray[np.float32]]:  # noqa: ARG002 - all the same
        """Return the function that reads the middle of a clip; in training it leaves reading to `vary`."""
        return self._read

    def _read(self, item: Item) -> Clip | NDArray[np.float32]:
        clip = Clip(read_content(item), item.name)
        return clip if self.training else self._input(self.preprocess.read(clip.content, name=clip.name))

    def _input(self, waveform: Waveform) -> NDArray[np.float32]:
        return self.preprocess.normalise(waveform[None]).numpy()[0]

    def vary(self, sample: Clip, rng: np.random.Generator) -> NDArray[np.float32]:
        """Take a random segment; change the gain of a waveform, mask bands of a spectrogram."""
        place, seconds = rng.random(), self.preprocess.seconds
        waveform = read_sound(
            sample.content,
            rate=self.preprocess.rate,
            # A clip that is shorter than the segment starts anywhere in it: before its own beginning, so to speak.
            start=lambda length: float(place * (length - seconds)),
            seconds=seconds,
            name=sample.name,
        )
        varied = self._input(waveform)
        if not self.preprocess.mels:  # after normalisation, which would undo it
            return varied * np.float32(10 ** (rng.uniform(-MAX_GAIN, MAX_GAIN) / 20))
        for axis, fraction in ((1, MASKED_FREQUENCIES), (2, MASKED_TIME)):
            width = int(rng.integers(int(fraction * varied.shape[axis]) + 1))
            first = int(rng.integers(varied.shape[axis] - width + 1))
            np.moveaxis(varied, axis, 0)[first : first + width] = 0.0  # the mean of every spectrogram
        return varied

    def new_rows(self, num: int) -> SoundRows:
        """Allocate a batch of clips."""
        return SoundRows(self.preprocess, num)

    def mix(
        self, fields: Fields, *, num_classes: int, multi_label: bool, seed: int, epoch: int, positions: Sequence[int]
    ) -> Fields:
        """Mix pairs of clips and their labels (mixup)."""
        return mix_fields(
            fields,
            "sound",
            mixup=self.mixup,
            num_classes=num_classes,
            multi_label=multi_label,
            seed=seed,
            epoch=epoch,
            positions=positions,
        )

    def flush(self) -> None:
        """Nothing is cached."""

    def cached(self, source: Source, limit_gb: float) -> SoundPreparation:  # noqa: ARG002 - reading a segment is fast
        """The same: only a segment is ever decoded."""
        return self

    def reduced(self, factor: float, cells: tuple[int, ...]) -> SoundPreparation:  # noqa: ARG002 - nothing to scale
        """The same: what a model learns from fewer bands and frames does not carry over to more, unlike for images."""
        return self

    def lengths(self, source: Source) -> None:  # noqa: ARG002 - the same for every source
        """All clips of a batch have the same length."""
        return


class SoundRows:
    """A batch of sound in preparation."""

    def __init__(self, preprocess: Spec, num: int) -> None:
        self.sounds = preprocess.empty_batch(num)

    def put(self, row: int, sample: NDArray[np.float32]) -> None:
        """Store the input of a row."""
        self.sounds.numpy()[row] = sample

    def stack(self, rows: Sequence[int] | None = None) -> Fields:
        """The inputs of all rows, or of these."""
        return {"sound": self.sounds if rows is None else self.sounds[list(rows)]}
