"""How fast a model trains and predicts here, and in which number format, layout and kernel: timed on the model itself.

A forecast counts the whole step: reading images, forward, backward, and the update of the weights.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, nn

from vitrail.data.loader import Loader
from vitrail.errors import TrainError, brief
from vitrail.machine import PAYS, bfloat16_is_faster, now, seconds_of
from vitrail.nn.attention.full import set_fused
from vitrail.objective.classify import Classify
from vitrail.training.world import World

MEMORY_SHARE = 0.6  # of the free memory, for the activations of a batch
FIRST = 4  # images in the first timed step, which also measures their memory
SECONDS = 0.4  # that a timed step may take
TRIES = 2
PATIENCE = 8.0  # seconds, after which no further kernel is tried
DATA_SECONDS, DATA_BATCHES = 0.5, 8  # of the loader, while it is timed
ADAM_COPIES = 4  # weights, gradients and two moments
logger = logging.getLogger("vitrail")


class Kernels(NamedTuple):
    """Number format, memory layout and attention kernel of training."""

    bfloat16: bool = False
    channels_last: bool = True
    fused_attention: bool = True

    def apply(self, model: nn.Module) -> None:
        """Let a model compute so; the number format is the autocast's."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        model.to(memory_format=layout)  # type: ignore[call-overload]
        set_fused(model, fused=self.fused_attention)


class Cost(NamedTuple):
    """What training costs here, in seconds and bytes."""

    bytes_per_image: float
    forward: float
    """Seconds per image."""
    backward: float
    update: float = 0.0
    """Seconds per step, however many images it has: clipping, optimizer, average of the weights."""
    data: float = 0.0
    """Seconds per image while nothing else runs."""
    overlaps: bool = False
    """Whether images are read while another device computes."""

    def images_per_second(self, batch_size: int) -> float:
        """The speed of whole steps."""
        compute = self.forward + self.backward + self.update / batch_size
        return 1.0 / (max(compute, self.data) if self.overlaps else compute + self.data)


def measure(
    model: nn.Module, objective: Classify, images: Tensor, labels: Tensor, world: World, *, bfloat16: bool
) -> Cost:
    """A few steps forward and back on some of these images, which leave the weights as they are; the fastest counts.

    The first one, on very few images, measures their memory, and how many the next ones can take in a second.
    """
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    stored: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    few = min(FIRST, len(images))
    with _without_trace(model):
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            first = sum(step_seconds(model, objective, images[:few], labels[:few], world, bfloat16=bfloat16))
        num = int(min(len(images), max(few, few * SECONDS / first)))
        steps = [
            step_seconds(model, objective, images[:num], labels[:num], world, bfloat16=bfloat16)
            for _ in range(TRIES + 1)
        ]
    forward, backward = min(steps[1:], key=sum)
    return Cost(sum(stored.values()) / few, forward / num, backward / num)


def choose_kernels(
    model: nn.Module,
    objective: Classify,
    images: Tensor,
    labels: Tensor,
    world: World,
    *,
    bfloat16: bool | None = None,
    quick: bool = False,
) -> tuple[Kernels, Cost]:
    """The fastest way to train this model here, found by trying one change after the other; `bfloat16` may be fixed.

    A `quick` answer tries number formats only.
    """
    began = time.monotonic()

    def cost_of(kernels: Kernels) -> Cost:
        kernels.apply(model)
        return measure(model, objective, images, labels, world, bfloat16=kernels.bfloat16)

    best = Kernels(bfloat16=bool(bfloat16), fused_attention=not bfloat16)
    cost = cost_of(best)
    if bfloat16 is None and bfloat16_is_faster(world.device):
        best, cost = _better(cost_of, best, cost, best._replace(bfloat16=True, fused_attention=False))
    if not quick and world.device.type == "cpu":
        if any(isinstance(module, nn.Conv2d) and module.stride < module.kernel_size for module in model.modules()):
            best, cost = _better(cost_of, best, cost, best._replace(channels_last=False))
        if time.monotonic() - began < PATIENCE:
            best, cost = _better(cost_of, best, cost, best._replace(fused_attention=not best.fused_attention))
    best.apply(model)
    return best, cost


def _better(cost_of: Callable[[Kernels], Cost], kernels: Kernels, cost: Cost, other: Kernels) -> tuple[Kernels, Cost]:
    """The other kernels where they are clearly faster."""
    other_cost = cost_of(other)
    faster = cost.forward + cost.backward > PAYS * (other_cost.forward + other_cost.backward)
    return (other, other_cost) if faster else (kernels, cost)


def forward_seconds(model: nn.Module, images: Tensor, world: World, *, bfloat16: bool = False) -> float:
    """Seconds per image of prediction, on as many of these images as a moment allows."""
    was_training = model.training
    model.eval()

    def run(num: int) -> float:
        with torch.no_grad(), torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16):
            return seconds_of(lambda: model(images[:num].to(world.device)), world.device)

    few = min(FIRST, len(images))
    run(few)
    num = int(min(len(images), max(few, few * SECONDS / run(few))))
    seconds = min(run(num) for _ in range(TRIES)) / num
    model.train(was_training)
    return seconds


def bfloat16_predicts_faster(model: nn.Module, images: Tensor, world: World) -> bool:
    """Whether this model predicts clearly faster in bfloat16."""
    if not bfloat16_is_faster(world.device):
        return False
    plain, short = (forward_seconds(model, images, world, bfloat16=bfloat16) for bfloat16 in (False, True))
    return plain > PAYS * short


def update_seconds(model: nn.Module, update: Callable[[], None], world: World) -> float:
    """Seconds of an update of the weights, which must be one that changes nothing: of a learning rate of zero."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    update()
    seconds = min(seconds_of(update, world.device) for _ in range(TRIES))
    model.zero_grad(set_to_none=True)
    return seconds


def data_seconds(loader: Loader) -> float:
    """Seconds per image of reading and augmenting, all workers together."""
    began, num = time.perf_counter(), 0
    batches = loader.batches()
    for batch in islice(batches, DATA_BATCHES):
        num += len(batch.images)
        seconds = time.perf_counter() - began
        if seconds > DATA_SECONDS:
            break
    batches.close()  # type: ignore[attr-defined]
    return seconds / max(1, num)


def compiling_pays(
    model: nn.Module, objective: Classify, images: Tensor, labels: Tensor, world: World, *, bfloat16: bool
) -> bool:
    """Whether torch.compile makes steps on these images faster; not if it fails."""
    compiled = torch.compile(model, dynamic=False)
    times: dict[int, list[float]] = {0: [], 1: []}
    with _without_trace(model):
        try:
            for _ in range(TRIES + 1):
                for place, network in enumerate((model, compiled)):
                    times[place].append(sum(step_seconds(network, objective, images, labels, world, bfloat16=bfloat16)))
        except Exception as error:  # noqa: BLE001 - a machine without a compiler, or a model that it cannot take
            logger.info("torch.compile does not work here: %s", brief(error))
            return False
    plain, fast = (min(each[1:]) for each in times.values())
    return plain > PAYS * fast


@contextmanager
def _without_trace(model: nn.Module) -> Iterator[None]:
    """Steps in here change neither the model nor the random numbers that are drawn after them."""
    was_training, state = model.training, torch.get_rng_state()
    model.train()
    yield
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    torch.set_rng_state(state)


def step_seconds(
    model: Any, objective: Classify, images: Tensor, labels: Tensor, world: World, *, bfloat16: bool
) -> tuple[float, float]:
    """The seconds of a step forward and back."""
    started = now(world.device)
    with torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16):
        loss = objective(model, images.to(world.device), labels.to(world.device)).sum()
    between = now(world.device)
    loss.backward()
    return between - started, now(world.device) - between


def smaller(spec: Any, factor: float) -> tuple[int, int]:
    """A model's image size with sides scaled by this factor, in whole cells of its grid."""
    return tuple(
        max(1, round(side * factor) // (side // cells)) * (side // cells)
        for side, cells in zip(spec.image_size, spec.layout.grid, strict=True)
    )


def needed_bytes(model: nn.Module, cost: Cost, num_images: float) -> float:
    """The memory of weights, gradients and moments, and of the activations of so many images."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return ADAM_COPIES * weights + num_images * cost.bytes_per_image


def parts_that_fit(model: nn.Module, cost: Cost, batch_size: int, world: World) -> int:
    """The number of parts, a power of two, into which a batch must be split to fit in memory."""
    if world.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(world.device)
    else:
        free = psutil.virtual_memory().available / world.local_size
    mine, num_parts = batch_size // world.size, 1
    while needed_bytes(model, cost, mine / num_parts) > free * MEMORY_SHARE:
        num_parts *= 2
        if num_parts > mine:
            raise TrainError(
                "a single image does not fit in memory.",
                got=f"{free / 2**30:.1f} GiB free, {needed_bytes(model, cost, 1) / 2**30:.1f} needed.",
                hint="a smaller --model, or model.image_size=.",
            )
    return num_parts
