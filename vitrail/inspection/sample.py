"""The images that figures are computed from: a sample spread evenly over a data set."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.data.prepare.image import image_loader
from vitrail.data.reader import Reader
from vitrail.data.table import Table
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, printable

BATCH = 16
logger = logging.getLogger("vitrail")


@dataclass(frozen=True)
class Sample:
    """Some images of a table, all readable."""

    source: Table
    preprocess: Preprocess

    def __len__(self) -> int:
        return len(self.source)

    def batches(self, num: int | None = None) -> Iterator[Float[Tensor, "B C Y X"]]:
        """Preprocessed images in batches; only the first `num` if it is set."""
        source = self.source if num is None else self.source.only(range(min(num, len(self.source))))
        for batch in image_loader(source, self.preprocess, batch_size=BATCH).epoch():
            yield batch.fields["image"]


def sample_evenly(source: Table, num: int, preprocess: Preprocess) -> Sample:
    """Sample up to `num` images evenly over the table, alternating between classes; unreadable ones are skipped."""
    rows = np.unique(np.linspace(0, len(source) - 1, min(num, len(source))).round().astype(np.int64))
    rows = np.random.default_rng(0).permutation(rows)
    labels = np.asarray(source.labels)[rows] if source.starts is None else np.zeros(len(rows), dtype=np.int64)
    turn = np.array([np.count_nonzero(labels[:place] == label) for place, label in enumerate(labels)])
    reader = Reader(preprocess)
    readable = []
    for row in rows[np.argsort(turn, kind="stable")]:
        try:
            reader.read(source[int(row)])
            readable.append(row)
        except DataError as error:
            logger.warning("Skipped: %s", printable(error.wrong))
    if not readable:
        raise DataError("no image could be read.", got=f"{len(rows)} unreadable images.", hint="vitrail check.")
    return Sample(source.only(readable), preprocess)
