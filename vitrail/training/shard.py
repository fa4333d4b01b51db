"""Weights that are cut in parts over the processes (FSDP2): how they are cut, put together and filled."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def cut(model: nn.Module) -> nn.Module:
    """A copy of the model of which each process holds a part; block by block it is put together when it is used."""
    from torch.distributed.fsdp import fully_shard

    made = copy.deepcopy(model)
    made.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # other layouts cannot be cut
    for tensor in (*made.parameters(), *made.buffers()):
        dist.broadcast(tensor.detach(), 0)
    for block in getattr(made, "blocks", getattr(made, "stages", ())):
        fully_shard(block)
    # Always cut again after use, so that what is read or written between steps is the parts and nothing else.
    fully_shard(made, reshard_after_forward=True)
    return made


def is_sharded(model: nn.Module) -> bool:
    """Whether each process holds a part only."""
    return any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def whole(tensor: Tensor) -> Tensor:
    """A tensor in one piece; all processes must ask together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What this process holds of each tensor."""
    return {name: tensor.to_local() if hasattr(tensor, "to_local") else tensor for name, tensor in tensors.items()}


def like(tensor: Tensor, parameter: Any) -> Tensor:
    """A tensor as a copy that lies where, and in the parts in which, the parameter does; no process asks another."""
    made: Tensor = torch.empty_like(parameter)
    if hasattr(parameter, "device_mesh") and not hasattr(tensor, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        tensor = distribute_tensor(
            tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
        )
    return made.copy_(tensor)


@torch.no_grad()
def fill(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Put tensors, whole or in parts, into those of a model or an average."""
    for name, target in targets.items():
        target.copy_(like(tensors[name], target))


@torch.no_grad()
def put_together(model: nn.Module, parts: nn.Module) -> None:
    """Fill a whole model from one that is cut, a tensor after the other; all processes must ask together."""
    stored = parts.state_dict()
    for name, target in model.state_dict().items():
        target.copy_(whole(stored[name]))
