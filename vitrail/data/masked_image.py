"""Images with hidden patches, for masked patch prediction (arXiv 2010.11929, section 4.6) and MAE (arXiv 2111.06377).

`hidden` holds the places that are hidden in each image, in random order, and `shown` what is shown at each of them
instead: the place of a patch, or `MASKED` for none. Which patches are hidden is a pure function of seed, epoch and
image in training, and of the image alone in evaluation, so that any number of processes sees the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.batch import Fields
from vitrail.data.decode import Pixels
from vitrail.data.prepare.image import ImagePreparation, ImageRows
from vitrail.data.rng import make_rng
from vitrail.data.table import Item, Source
from vitrail.data.transform import Preprocess
from vitrail.tokens import cut

MASKED = -1
MASKED_SHARE, OTHER_SHARE = 0.8, 0.1  # of the hidden patches; the rest is shown as it is


class PatchMasking(NamedTuple):
    """Which patches of an image are hidden, and what is shown instead."""

    rate: float
    """The fraction of the patches that are hidden; at least one is hidden and one is not."""
    corrupts: bool
    """Whether some hidden patches show another patch, or themselves, instead of none."""

    def count(self, num: int) -> int:
        """The number of hidden patches of an image of `num` patches."""
        return min(max(round(self.rate * num), 1), num - 1)

    def draw(self, num: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the hidden places of an image of `num` patches, and what is shown at each.

        Another patch is always one that is not hidden, so that nothing is given away.
        """
        places = rng.permutation(num)
        hidden, visible = np.split(places, [self.count(num)])
        shown = np.full(len(hidden), MASKED)
        if self.corrupts:
            draws = rng.random(len(hidden))
            others = visible[rng.integers(len(visible), size=len(hidden))]
            shown = np.select([draws < MASKED_SHARE, draws < MASKED_SHARE + OTHER_SHARE], [shown, others], hidden)
        return hidden, shown


class MaskedSample(NamedTuple):
    """An image, its hidden places, and what is shown at each."""

    pixels: Pixels
    hidden: NDArray[np.int64]
    shown: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class MaskedImagePreparation(ImagePreparation):
    """The preparation of images, with hidden patches of the size `cell`."""

    cell: tuple[int, ...]
    masking: PatchMasking

    @property
    def num_patches(self) -> int:
        """The number of patches of an image."""
        return int(np.prod(cut(self.preprocess.size, self.cell)))

    def reader(self, source: Source) -> Callable[[Item], MaskedSample]:  # type: ignore[override]
        """Return the function that reads an image and hides the patches that it hides in every evaluation."""
        read, masking = super().reader(source), self.masking._replace(corrupts=False)  # no answer is shown

        def read_masked(item: Item) -> MaskedSample:
            rng = make_rng("masks", seed=0, epoch=0, index=item.index)
            return MaskedSample(read(item), *masking.draw(self.num_patches, rng))

        return read_masked

    def vary(self, sample: MaskedSample, rng: np.random.Generator) -> MaskedSample:  # type: ignore[override]
        """Augment an image and hide other patches."""
        pixels = super().vary(sample.pixels, rng)
        return MaskedSample(pixels, *self.masking.draw(self.num_patches, rng))

    def new_rows(self, num: int) -> MaskedRows:
        """Allocate a batch of images."""
        return MaskedRows(self.preprocess, num, self.masking.count(self.num_patches))


class MaskedRows(ImageRows):
    """A batch of images with hidden patches in preparation."""

    def __init__(self, preprocess: Preprocess, num: int, num_hidden: int) -> None:
        super().__init__(preprocess, num)
        self.hidden, self.shown = (torch.zeros(num, num_hidden, dtype=torch.int64) for _ in range(2))

    def put(self, row: int, sample: MaskedSample) -> None:  # type: ignore[override]
        """Normalise an image into its row, and store its hidden patches."""
        super().put(row, sample.pixels)
        self.hidden[row], self.shown[row] = torch.from_numpy(sample.hidden), torch.from_numpy(sample.shown)

    def stack(self, rows: Sequence[int] | None = None) -> Fields:
        """The fields of all rows, or of these."""
        others = {"hidden": self.hidden, "shown": self.shown}
        chosen = others if rows is None else {name: tensor[list(rows)] for name, tensor in others.items()}
        return {**super().stack(rows), **chosen}
