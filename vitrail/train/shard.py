"""Weights that are cut in parts over the processes (FSDP2), as whole tensors for checkpoints, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in one piece, on the CPU; all processes must ask together."""
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu()
        for name, tensor in tensors.items()
    }


def like(tensor: Tensor, parameter: Any) -> Tensor:
    """A whole tensor as a copy that lies where, and in the parts in which, the parameter does."""
    made: Tensor = torch.empty_like(parameter)
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        tensor = distribute_tensor(tensor.to(parameter.device), parameter.device_mesh, parameter.placements)
    return made.copy_(tensor)


@torch.no_grad()
def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put whole tensors into a model."""
    for name, tensor in model.state_dict().items():
        tensor.copy_(like(tensors[name], tensor))
