"""What fits this machine, measured and not assumed: number format, parts of a batch, torch.compile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, nn

from vitrail.errors import TrainError, brief
from vitrail.objective.classify import Classify
from vitrail.training.world import World

MEMORY_SHARE = 0.6  # of what is free, for what a batch keeps for its way back
FIRST, MOST = 4, 32  # pictures on which a step is timed
SECONDS = 1.0  # that a timed step may take
TRIES = 3
PAYS = 1.05  # times as fast, before another number format is taken
ADAM_COPIES = 4  # weights, gradients and two moments
logger = logging.getLogger("vitrail")


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
    """A few steps forward and back on some of these pictures, the weights left as they are: the fastest counts.

    A first step on very few pictures tells what they keep in memory, and how many the next ones can take in a second.
    """
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    few = min(FIRST, len(images))
    with _tried(model):
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            first = _seconds(model, objective, images[:few], labels[:few], world, bfloat16=bfloat16)
        num = int(min(MOST, len(images), max(few, few * SECONDS / first)))
        times = [_seconds(model, objective, images[:num], labels[:num], world, bfloat16=bfloat16) for _ in range(TRIES)]
    return Cost(sum(kept.values()) / few, num / min(times))


def compiling_pays(
    model: nn.Module, objective: Classify, images: Tensor, labels: Tensor, world: World, *, bfloat16: bool
) -> bool:
    """Whether these pictures pass faster through what torch.compile makes of the model; not if it makes nothing."""
    compiled = torch.compile(model, dynamic=False)
    times: dict[int, list[float]] = {0: [], 1: []}
    with _tried(model):
        try:
            for _ in range(TRIES + 1):
                for place, network in enumerate((model, compiled)):
                    times[place].append(_seconds(network, objective, images, labels, world, bfloat16=bfloat16))
        except Exception as error:  # noqa: BLE001 - a machine without a compiler, or a model that it cannot take
            logger.info("torch.compile does not work here: %s", brief(error))
            return False
    plain, fast = (min(each[1:]) for each in times.values())
    return plain > PAYS * fast


@contextmanager
def _tried(model: nn.Module) -> Iterator[None]:
    """Steps in here leave no trace in the model, nor in what is drawn after them."""
    was_training, state = model.training, torch.get_rng_state()
    model.train()
    yield
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    torch.set_rng_state(state)


def _seconds(model: Any, objective: Classify, images: Tensor, labels: Tensor, world: World, *, bfloat16: bool) -> float:
    """The time of a step forward and back."""
    started = _now(world)
    with torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16):
        loss = objective(model, images.to(world.device), labels.to(world.device)).sum()
    loss.backward()
    return _now(world) - started


def choose_precision(cost_of: Callable[[bool], Cost], world: World) -> tuple[bool, Cost]:
    """Whether to multiply in bfloat16: where the hardware has it and it is faster for this model."""
    plain = cost_of(False)
    if not has_bfloat16(world.device):
        return False, plain
    short = cost_of(True)
    return (True, short) if short.images_per_second > PAYS * plain.images_per_second else (False, plain)


def smaller(spec: Any, factor: float) -> tuple[int, int]:
    """A model's image size with sides of this share, in whole cells of its grid."""
    return tuple(
        max(1, round(side * factor) // (side // cells)) * (side // cells)
        for side, cells in zip(spec.image_size, spec.layout.grid, strict=True)
    )


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
