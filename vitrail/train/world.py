"""The processes of a run: one, or many under torchrun, which see the same batches together (DDP, FSDP2)."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn


class World(NamedTuple):
    """This process among all of them."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def leads(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def add_up(self, *values: float) -> list[float]:
        """The sums over all processes."""
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(numbers)
        return numbers.tolist()

    def agree(self, leader_says: bool) -> bool:
        """What the leader says."""
        return leader_says if self.size == 1 else self.add_up(float(leader_says and self.leads))[0] > 0

    def gather(self, part: Any) -> list[Any]:
        """Each process's part, in the order of ranks, for the leader; nothing for the others."""
        if self.size == 1:
            return [part]
        parts: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(part, parts)
        return parts or []

    def share(self, value: Any) -> Any:
        """The leader's value, for everybody."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, device=self.device)
        return box[0]


def join() -> World:
    """This process's place, as torchrun's environment tells it; alone where there is none."""
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return World(device=device)
    if cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
    return World(dist.get_rank(), dist.get_world_size(), device)


def leave() -> None:
    """Let go of the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def spread(model: nn.Module, world: World, *, shard: bool) -> nn.Module:
    """The model as it is trained by all processes: copies that average their gradients, or one that is cut in parts."""
    if shard:
        from torch.distributed.fsdp import fully_shard

        for block in getattr(model, "blocks", getattr(model, "stages", ())):
            fully_shard(block)
        fully_shard(model)
        return model
    if world.size == 1:
        return model
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_ids=[world.device.index] if world.device.type == "cuda" else None)
