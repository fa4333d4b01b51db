"""One batch for all modalities: named tensors with one row per sample, and where the samples came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

Fields = dict[str, Tensor]
"""Tensors by name (`image`, `label`, `text`, ...), each with one row per sample.

A plain dict, because DDP, FSDP2 and torch.compile look into dicts by themselves.
"""


class Batch(NamedTuple):
    """The samples of one step: what the model takes, what the objective reads, and where they came from."""

    fields: Fields
    indices: Int64[Tensor, " B"]
    names: tuple[str, ...]

    @property
    def num(self) -> int:
        """The number of samples."""
        return len(self.indices)

    def to(self, device: torch.device) -> Batch:
        """Move the fields to a device."""
        return self._replace(fields={name: tensor.to(device) for name, tensor in self.fields.items()})


def split_fields(fields: Fields, num: int) -> list[Fields]:
    """Split each field into `num` parts of nearly equal length, perhaps empty ones."""
    parts = {name: tensor.tensor_split(num) for name, tensor in fields.items()}
    return [{name: tensors[number] for name, tensors in parts.items()} for number in range(num)]


def first_rows(fields: Mapping[str, Tensor], num: int) -> Fields:
    """The fields of the first `num` samples."""
    return {name: tensor[:num] for name, tensor in fields.items()}


def count_rows(fields: Mapping[str, Tensor]) -> int:
    """The number of samples."""
    return len(next(iter(fields.values())))


def apply_model(model: torch.nn.Module, fields: Mapping[str, Tensor]) -> Tensor:
    """Call a model with the fields that it takes, in its order."""
    return model(*(fields[name] for name in model.TAKES))  # type: ignore[union-attr]
