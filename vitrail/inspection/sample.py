"""The pictures that figures are drawn from: some of a data set, spread evenly over it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.data.loader import Loader
from vitrail.data.reader import Reader
from vitrail.data.table import Table
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, shown

BATCH = 16
logger = logging.getLogger("vitrail")


@dataclass(frozen=True)
class Sample:
    """Some pictures of a table, all of which can be read."""

    source: Table
    preprocess: Preprocess

    def __len__(self) -> int:
        return len(self.source)

    def batches(self, num: int | None = None) -> Iterator[Float[Tensor, "B C Y X"]]:
        """The pictures as a model takes them; the first `num` of them if it is told."""
        source = self.source if num is None else self.source.only(range(min(num, len(self.source))))
        for batch in Loader(source=source, preprocess=self.preprocess, batch_size=BATCH).epoch():
            yield batch.images


def spread_out(source: Table, num: int, preprocess: Preprocess) -> Sample:
    """So many pictures, evenly over the table, its classes by turns; damaged ones are left out."""
    rows = np.unique(np.linspace(0, len(source) - 1, min(num, len(source))).round().astype(np.int64))
    rows = np.random.default_rng(0).permutation(rows)
    labels = np.asarray(source.labels)[rows] if source.starts is None else np.zeros(len(rows), dtype=np.int64)
    turn = np.array([np.count_nonzero(labels[:place] == label) for place, label in enumerate(labels)])
    reader = Reader(preprocess)
    able = []
    for row in rows[np.argsort(turn, kind="stable")]:
        try:
            reader.stored(source[int(row)])
            able.append(row)
        except DataError as error:
            logger.warning("Left out: %s", shown(error.wrong))
    if not able:
        raise DataError("no picture could be read.", got=f"{len(rows)} that cannot.", hint="vitrail check.")
    return Sample(source.only(able), preprocess)
