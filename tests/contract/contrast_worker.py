"""Run by torchrun for test_contrast.py: the losses and gradients of a contrastive batch, of each process's part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.contract.small_vatt import new_contrast, new_fields, new_vatt
from vitrail.batch import Fields, split_fields
from vitrail.training.learner import Learner, stored_name
from vitrail.training.shard import full_tensor
from vitrail.training.world import World, distribute, init_world

NUM = 6
JOBS: dict[str, dict[str, Any]] = {"apart": {}, "shared": {"shared": True}, "flat": {"hierarchical": False}}


def doubles(fields: Fields) -> Fields:
    """The fields in float64."""
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in fields.items()}


def compute(world: World, *, shard: bool = False, **options: Any) -> dict[str, Tensor]:
    """The losses of all samples, and the gradients of their sum."""
    model = new_vatt(**options).double()
    learner = Learner(model, new_contrast(model))
    fields = split_fields(doubles(new_fields(NUM, 3)), world.size)[world.rank]
    wrapped = distribute(learner, world, lambda: fields, shard=shard)
    losses = wrapped(fields)
    (losses.sum() * world.size).backward()
    found = {"losses": torch.cat(world.all_gather(losses.detach()))}
    for name, parameter in wrapped.named_parameters():
        assert parameter.grad is not None, name
        found[stored_name(name.removeprefix("module."))] = full_tensor(parameter.grad).contiguous()
    return found


def main() -> None:
    torch.set_num_threads(1)
    world = init_world()
    for name, options in JOBS.items():
        for shard in (False, True):
            found = compute(world, shard=shard, **options)
            if world.is_rank_zero:
                save_file(found, Path(sys.argv[1]) / f"{name}-{shard}.safetensors")
    world.barrier()


if __name__ == "__main__":
    main()
