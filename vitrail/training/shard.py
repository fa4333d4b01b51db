"""Sharded weights (FSDP2): shard a model, gather full tensors, and copy tensors into shards."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitrail.training.learner import Learner


def shard_learner(learner: Learner) -> Learner:
    """Return a copy of the learner sharded over the processes; FSDP2 gathers it block by block when it is used."""
    from torch.distributed.fsdp import fully_shard

    sharded = copy.deepcopy(learner)
    sharded.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP2 shards no other layout
    for tensor in (*sharded.parameters(), *sharded.buffers()):
        dist.broadcast(tensor.detach(), 0)
    for part in sharded.children():
        for block in getattr(part, "blocks", getattr(part, "stages", ())):
            fully_shard(block)
    # Always reshard after use, so that code between steps reads and writes only the shards.
    fully_shard(sharded, reshard_after_forward=True)
    return sharded


def is_sharded(learner: nn.Module) -> bool:
    """Whether each process holds only a shard of the weights."""
    return any(hasattr(parameter, "device_mesh") for parameter in learner.parameters())


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a full tensor; all processes must call this together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This process's shard of each tensor."""
    return {name: tensor.to_local() if hasattr(tensor, "to_local") else tensor for name, tensor in tensors.items()}


def distribute_like(tensor: Tensor, parameter: Any) -> Tensor:
    """Return a copy of a tensor with the device and sharding of a parameter, without communication."""
    result: Tensor = torch.empty_like(parameter)
    if hasattr(parameter, "device_mesh") and not hasattr(tensor, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        tensor = distribute_tensor(
            tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
        )
    return result.copy_(tensor)


@torch.no_grad()
def copy_into(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy full or sharded tensors into those of a model or its EMA."""
    for name, target in targets.items():
        target.copy_(distribute_like(tensors[name], target))


@torch.no_grad()
def gather_into(learner: nn.Module, sharded: nn.Module) -> None:
    """Copy sharded weights into full ones, tensor by tensor; all processes must call this together."""
    shards = sharded.state_dict()
    for name, target in learner.state_dict().items():
        target.copy_(full_tensor(shards[name]))
