"""Video: a few frames of a clip, resized; in training from a random time, with one random crop and flip for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from vitrail import spec
from vitrail.batch import Fields
from vitrail.data.decode import Pixels
from vitrail.data.media import Clip, MediaContent
from vitrail.data.mix import mix_fields
from vitrail.data.reader import read_content
from vitrail.data.resize import resize
from vitrail.data.table import Item, Source
from vitrail.data.transform import Preprocess, scale_size
from vitrail.data.video import read_frames
from vitrail.errors import SpecError

FIELDS = ("video",)
SCALE = (0.5, 1.0)  # the fraction of a frame's area that a random crop keeps
RATIO = (3 / 4, 4 / 3)  # its aspect ratio
FLIP_RATE = 0.5
Frames = NDArray[np.uint8]
"""The frames of a clip, in 8 bits: [T Y X 3]."""


class Spec(spec.Spec):
    """How a video becomes the input of a model."""

    modality: ClassVar[str] = "video"
    channels: ClassVar[int] = 3

    size: spec.SizeNd = (8, 64, 64)
    """Frames, rows and columns. Frames are resized to cover the rows and columns, and cropped in the middle."""
    rate: Annotated[float, Field(gt=0.0, le=120.0)] = 5.0
    """Frames per second."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.5, 0.5, 0.5)

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if len(self.size) != 3:
            raise SpecError(
                "size must be frames, rows and columns.", got=f"size={self.size}.", hint="size=[8, 64, 64]."
            )
        return self

    @classmethod
    def of_size(cls, size: tuple[int, ...]) -> Self:
        """The preprocessing for a model's input."""
        return cls.parse({"size": size})

    @property
    def frame(self) -> Preprocess:
        """The preprocessing of each frame."""
        return Preprocess(size=(self.size[1], self.size[2]), mean=self.mean, std=self.std)

    @property
    def seconds(self) -> float:
        """The time that the frames span."""
        return self.size[0] / self.rate

    def read(self, content: MediaContent, *, name: str = "the clip") -> Frames:
        """The frames in the middle of a clip, still in 8 bits."""
        return read_frames(
            content, rate=self.rate, start=None, num=self.size[0], resize=self.frame.resize_and_crop, name=name
        )

    def empty_batch(self, num: int) -> Float[Tensor, "B 3 T Y X"]:
        """An uninitialised batch, channels last in memory."""
        batch = np.empty((num, *self.size, self.channels), dtype=np.float32)
        return torch.from_numpy(batch).permute(0, 4, 1, 2, 3)

    def normalise(
        self, batch: UInt8[np.ndarray, "B T Y X 3"], *, out: Float[Tensor, "B 3 T Y X"] | None = None
    ) -> Float[Tensor, "B 3 T Y X"]:
        """A batch as the model takes it: scaled to 0 to 1, then normalised by mean and std."""
        out = self.empty_batch(len(batch)) if out is None else out
        frames = out.permute(0, 2, 1, 3, 4).flatten(0, 1)  # the same memory
        self.frame.normalise(batch.reshape(-1, *batch.shape[2:]), out=frames)
        return out


VideoPreprocess = Spec


@dataclass(frozen=True, kw_only=True)
class VideoPreparation:
    """The preprocessing of a model and, for training, random times, crops and flips."""

    preprocess: Spec
    training: bool = False
    mixup: float = 0.0
    """The parameter of mixup's Beta distribution (arXiv 1710.09412); 0 is off."""
    repeats: int = 1
    draws: int = 0

    @property
    def varies(self) -> bool:
        """Whether frames are augmented."""
        return self.training

    @property
    def group(self) -> int:
        """Two if clips are mixed in pairs."""
        return 2 if self.training and self.mixup > 0 else 1

    def reader(self, source: Source) -> Callable[[Item], Clip | Frames]:  # noqa: ARG002 - the same for every source
        """Return the function that reads the middle of a clip; in training it leaves reading to `vary`."""
        return self._read

    def _read(self, item: Item) -> Clip | Frames:
        clip = Clip(read_content(item), item.name)
        return clip if self.training else self.preprocess.read(clip.content, name=clip.name)

    def vary(self, sample: Clip, rng: np.random.Generator) -> Frames:
        """Take frames from a random time, with the same random crop and flip for all of them."""
        place, crop, flip = rng.random(), RandomCrop.draw(rng), rng.random() < FLIP_RATE
        frame = self.preprocess.frame
        frames = read_frames(
            sample.content,
            rate=self.preprocess.rate,
            start=lambda seconds: float(place * max(0.0, seconds - self.preprocess.seconds)),
            num=self.preprocess.size[0],
            resize=lambda pixels: resize(crop.apply(pixels), *frame.size, frame.kernel),
            name=sample.name,
        )
        return np.ascontiguousarray(frames[:, :, ::-1]) if flip else frames

    def new_rows(self, num: int) -> VideoRows:
        """Allocate a batch of clips."""
        return VideoRows(self.preprocess, num)

    def mix(
        self, fields: Fields, *, num_classes: int, multi_label: bool, seed: int, epoch: int, positions: Sequence[int]
    ) -> Fields:
        """Mix pairs of clips and their labels (mixup)."""
        return mix_fields(
            fields,
            "video",
            mixup=self.mixup,
            num_classes=num_classes,
            multi_label=multi_label,
            seed=seed,
            epoch=epoch,
            positions=positions,
        )

    def flush(self) -> None:
        """Nothing is cached."""

    def cached(self, source: Source, limit_gb: float) -> VideoPreparation:  # noqa: ARG002 - frames differ each time
        """The same: training decodes other frames each time."""
        return self

    def reduced(self, factor: float, cells: tuple[int, ...]) -> VideoPreparation:
        """The same with smaller frames, of whole cells."""
        size = scale_size(self.preprocess.size[1:], cells[-2:], factor)
        return replace(self, preprocess=self.preprocess.override({"size": (self.preprocess.size[0], *size)}))

    def lengths(self, source: Source) -> None:  # noqa: ARG002 - the same for every source
        """All clips of a batch have the same number of frames."""
        return


@dataclass(frozen=True)
class RandomCrop:
    """A crop of random area, aspect ratio and position, for frames of any size."""

    area: float
    ratio: float
    top: float
    left: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> RandomCrop:
        """Draw a crop."""
        ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        return cls(rng.uniform(*SCALE), ratio, rng.random(), rng.random())

    def apply(self, pixels: Pixels) -> Pixels:
        """The crop of a frame."""
        rows, columns = pixels.shape[:2]
        area = rows * columns * self.area
        height = min(rows, max(1, round(math.sqrt(area / self.ratio))))
        width = min(columns, max(1, round(math.sqrt(area * self.ratio))))
        top, left = round(self.top * (rows - height)), round(self.left * (columns - width))
        return np.ascontiguousarray(pixels[top : top + height, left : left + width])


class VideoRows:
    """A batch of video in preparation."""

    def __init__(self, preprocess: Spec, num: int) -> None:
        self.preprocess, self.videos = preprocess, preprocess.empty_batch(num)

    def put(self, row: int, sample: Frames) -> None:
        """Normalise the frames of a row."""
        self.preprocess.normalise(sample[None], out=self.videos[row : row + 1])

    def stack(self, rows: Sequence[int] | None = None) -> Fields:
        """The clips of all rows, or of these."""
        return {"video": self.videos if rows is None else self.videos[list(rows)]}
