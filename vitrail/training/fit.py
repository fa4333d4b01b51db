"""What fits this machine, measured and not assumed: number format, parts of a batch, torch.compile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import psutil
import torch
from torch import Tensor, nn

from vitrail.errors import TrainError
from vitrail.objective.classify import Classify
from vitrail.training.world import World

MEMORY_SHARE = 0.6  # of what is free, for what a batch keeps for its way back
TRIES = 3
PAYS = 1.05  # times as fast, before another number format is taken
ADAM_COPIES = 4  # weights, gradients and two moments


class Cost(NamedTuple):
    """What training costs here."""

    bytes_per_image: float
    images_per_second: float


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies in bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001


def measure(
    model: nn.Module, objective: Classify, images: Tensor, labels: Tensor, world: World, *, bfloat16: bool
) -> Cost:
    """A few steps forward and back on these pictures, the weights left as they are: the fastest counts."""
    images, labels = images.to(world.device), labels.to(world.device)
    was_training, best = model.training, float("inf")
    kept: dict[int, int] = {}
    model.train()

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    state = torch.get_rng_state()
    for attempt in range(TRIES):
        started = _now(world)
        with torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16):
            if attempt == 0:
                with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                    loss = objective(model, images, labels).sum()
            else:
                loss = objective(model, images, labels).sum()
        loss.backward()
        best = min(best, _now(world) - started) if attempt else best
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    torch.set_rng_state(state)
    return Cost(sum(kept.values()) / len(images), len(images) / best)


def choose_precision(cost_of: Callable[[bool], Cost], world: World) -> tuple[bool, Cost]:
    """Whether to multiply in bfloat16: where the hardware has it and it is faster for this model."""
    plain = cost_of(False)
    if not has_bfloat16(world.device):
        return False, plain
    short = cost_of(True)
    return (True, short) if short.images_per_second > PAYS * plain.images_per_second else (False, plain)


def needed_bytes(model: nn.Module, cost: Cost, num_images: float) -> float:
    """The memory of weights, gradients and moments, and of so many pictures on their way."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return ADAM_COPIES * weights + num_images * cost.bytes_per_image


def parts_that_fit(model: nn.Module, cost: Cost, batch_size: int, world: World) -> int:
    """In how many parts a batch must be taken so that it fits in memory, a power of two."""
    if world.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(world.device)
    else:
        free = psutil.virtual_memory().available / world.local_size
    mine, num_parts = batch_size // world.size, 1
    while needed_bytes(model, cost, mine / num_parts) > free * MEMORY_SHARE:
        num_parts *= 2
        if num_parts > mine:
            raise TrainError(
                "a single picture does not fit in memory.",
                got=f"{free / 2**30:.1f} GiB free, {needed_bytes(model, cost, 1) / 2**30:.1f} needed.",
                hint="a smaller --model, or model.image_size=.",
            )
    return num_parts


def _now(world: World) -> float:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    return time.perf_counter()
