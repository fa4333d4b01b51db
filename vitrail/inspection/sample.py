"""The pictures that figures are drawn from: some of a data set, spread evenly over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.data.decode import Pixels, as_pixels, decode_image
from vitrail.data.loader import Loader
from vitrail.data.table import Table
from vitrail.data.transform import Preprocess

BATCH = 16


@dataclass(frozen=True)
class Sample:
    """Some pictures of a table."""

    source: Table
    preprocess: Preprocess

    def __len__(self) -> int:
        return len(self.source)

    def batches(self, num: int | None = None) -> Iterator[Float[Tensor, "B C Y X"]]:
        """The pictures as a model takes them; the first `num` of them if it is told."""
        source = self.source if num is None else self.source.only(range(min(num, len(self.source))))
        for batch in Loader(source=source, preprocess=self.preprocess, batch_size=BATCH, policy="skip").epoch():
            if len(batch.images):
                yield batch.images

    def picture(self, index: int) -> Pixels:
        """One picture as it is."""
        content = self.source.content(index)
        return (
            decode_image(content, name=self.source.names[index]) if isinstance(content, bytes) else as_pixels(content)
        )


def spread_out(source: Table, num: int, preprocess: Preprocess) -> Sample:
    """So many pictures, evenly over the table, in an order that mixes its classes."""
    rows = np.unique(np.linspace(0, len(source) - 1, min(num, len(source))).round().astype(np.int64))
    return Sample(source.only(np.random.default_rng(0).permutation(rows)), preprocess)
