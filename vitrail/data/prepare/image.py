"""Images: decoded and resized, perhaps from the cache; augmented; normalised; mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitrail.batch import Fields
from vitrail.data.augment import Augment
from vitrail.data.cache import KEY_BYTES, PixelCache
from vitrail.data.decode import Pixels
from vitrail.data.loader import Loader
from vitrail.data.mix import mix_fields
from vitrail.data.reader import Reader, form
from vitrail.data.table import Item, Source, Stream
from vitrail.data.transform import Preprocess, scale_size

Spec = Preprocess
FIELDS = ("image",)
NEAR = 0.8  # of the factor: smaller images than that are too unlike those of full size


@dataclass(frozen=True, kw_only=True)
class ImagePreparation:
    """The preprocessing of a model and, for training, the augmentation."""

    preprocess: Preprocess
    augment: Augment | None = None
    cache: PixelCache | None = None

    @property
    def varies(self) -> bool:
        """Whether images are augmented."""
        return self.augment is not None

    @property
    def group(self) -> int:
        """Two if images are mixed in pairs."""
        return 2 if self.augment is not None and (self.augment.mixup > 0 or self.augment.cutmix > 0) else 1

    @property
    def repeats(self) -> int:
        """How many times in a row each image is shown in an epoch."""
        return self.augment.repeats if self.augment is not None else 1

    @property
    def draws(self) -> int:
        """After how many epochs each image is augmented as before; 0 for never."""
        return self.augment.draws if self.augment is not None else 0

    def reader(self, source: Source) -> Callable[[Item], Pixels]:
        """Return the function that reads an image of this source; it remembers the cache key of each image."""
        reader = Reader(self.preprocess, self.augment, self.cache)
        if self.cache is None or isinstance(source, Stream):
            return reader.read
        return reader._replace(keys=np.zeros((len(source), KEY_BYTES), dtype=np.uint8)).read

    def vary(self, sample: Pixels, rng: np.random.Generator) -> Pixels:
        """Augment an image."""
        assert self.augment is not None
        return self.augment.apply(self.preprocess, sample, rng)

    def new_rows(self, num: int) -> ImageRows:
        """Allocate a batch of images."""
        return ImageRows(self.preprocess, num)

    def mix(
        self, fields: Fields, *, num_classes: int, multi_label: bool, seed: int, epoch: int, positions: Sequence[int]
    ) -> Fields:
        """Mix pairs of images and their labels (mixup, CutMix)."""
        assert self.augment is not None
        return mix_fields(
            fields,
            "image",
            mixup=self.augment.mixup,
            cutmix=self.augment.cutmix,
            num_classes=num_classes,
            multi_label=multi_label,
            seed=seed,
            epoch=epoch,
            positions=positions,
        )

    def flush(self) -> None:
        """Write the cache to disk."""
        if self.cache is not None:
            self.cache.flush()

    def cached(self, source: Source, limit_gb: float) -> ImagePreparation:
        """The same with a cache of decoded images; without one if there is nothing to decode."""
        encoded = isinstance(source, Stream) or isinstance(source[0].content(), bytes)
        if not limit_gb or not encoded:
            return self
        return replace(
            self, cache=PixelCache(form(self.preprocess, self.augment), limit_gb=limit_gb, outside=source.root)
        )

    def reduced(self, factor: float, cells: tuple[int, ...]) -> ImagePreparation:
        """The same with smaller images, of whole cells, and not cached; itself if they would not help.

        A ResNet on small images has 2 x 2 cells: half of the side would teach it little about the whole. What a model
        learns about single pixels does not carry over to more of them.
        """
        full = self.preprocess.size
        size = scale_size(full, cells, factor)
        if full in (size, cells) or any(side < NEAR * factor * whole for side, whole in zip(size, full, strict=True)):
            return self
        return replace(self, preprocess=self.preprocess.override({"size": size}), cache=None)

    def lengths(self, source: Source) -> None:  # noqa: ARG002 - the same for every source
        """All images of a batch have the same size."""
        return


class ImageRows:
    """A batch of images in preparation."""

    def __init__(self, preprocess: Preprocess, num: int) -> None:
        self.preprocess, self.images = preprocess, preprocess.empty_batch(num)

    def put(self, row: int, sample: Pixels) -> None:
        """Normalise an image into its row."""
        self.preprocess.normalise(sample[None], out=self.images[row : row + 1])

    def stack(self, rows: Sequence[int] | None = None) -> Fields:
        """The images of all rows, or of these."""
        return {"image": self.images if rows is None else self.images[list(rows)]}


def image_loader(
    source: Source,
    preprocess: Preprocess,
    *,
    augment: Augment | None = None,
    cache: PixelCache | None = None,
    **options: Any,
) -> Loader:
    """Create a loader of images."""
    prepare = ImagePreparation(preprocess=preprocess, augment=augment, cache=cache)
    return Loader(source=source, prepare=prepare, **options)
