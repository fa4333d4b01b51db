"""What turns the items of a source into the fields of a batch; `data/prepare` has one entry per modality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.batch import Fields
from vitrail.data.table import Item, Source


class InputPreprocess(Protocol):
    """How the content of a sample becomes the tensor that a model was trained on, whatever its modality."""

    @property
    def modality(self) -> str:
        """The field of a batch that it makes: `image`, `sound` or `video`."""

    @property
    def size(self) -> tuple[int, ...]:
        """The size of the model's input."""

    def read(self, content: Any, *, name: str) -> NDArray[Any]:
        """Decode an item to the model's size, in the form that is stacked."""

    def normalise(self, batch: NDArray[Any]) -> Tensor:
        """A batch as the model takes it."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """Its fields, as stored with a run."""


class Rows(Protocol):
    """A batch in preparation: threads put samples into it, each into its own row."""

    def put(self, row: int, sample: Any) -> None:
        """Normalise a sample and store it in a row."""

    def stack(self, rows: Sequence[int] | None = None) -> Fields:
        """The fields of all rows, or of these."""


class Preparation(Protocol):
    """Reads, varies and stacks the samples of one modality (or of several)."""

    @property
    def varies(self) -> bool:
        """Whether `vary` is to be called, as in training."""

    @property
    def group(self) -> int:
        """How many neighbours `mix` mixes with each other; a batch holds whole groups."""

    @property
    def repeats(self) -> int:
        """How many times in a row each sample is shown in an epoch, varied again each time."""

    @property
    def draws(self) -> int:
        """After how many epochs each sample is varied as before; 0 for never."""

    def reader(self, source: Source) -> Callable[[Item], Any]:
        """Return the function that reads an item of this source: decoded, in the form that is cached."""

    def vary(self, sample: Any, rng: np.random.Generator) -> Any:
        """Augment a sample; the result depends on nothing but the sample and the generator."""

    def new_rows(self, num: int) -> Rows:
        """Allocate a batch."""

    def mix(
        self, fields: Fields, *, num_classes: int, multi_label: bool, seed: int, epoch: int, positions: Sequence[int]
    ) -> Fields:
        """Mix neighbours; called only if `group` is more than one."""

    def flush(self) -> None:
        """Write what is cached to disk."""

    def cached(self, source: Source, limit_gb: float) -> Preparation:
        """The same with a cache on disk, if reading this source costs more than looking it up."""

    def reduced(self, factor: float, cells: tuple[int, ...]) -> Preparation:
        """The same at a lower resolution that the same grid of cells, scaled by this factor, divides."""

    def lengths(self, source: Source) -> NDArray[np.int64] | None:
        """How long each sample is, so that a batch holds samples of similar length; None if all are the same."""
