"""The speed of training and inference on this machine, and the fastest number format, memory layout and kernels.

Everything is timed on the model itself. A forecast counts the whole step: reading images, forward, backward, update.
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

from vitrail import machine
from vitrail.data.loader import Loader
from vitrail.errors import TrainError, brief
from vitrail.machine import PAYS, bfloat16_is_faster, now, seconds_of
from vitrail.nn.attention.full import set_fused
from vitrail.objective.classify import Classify
from vitrail.training.world import World

MEMORY_FRACTION = 0.6  # of the free memory
NUM_FIRST = 4  # images of the first step, which measures memory
MAX_STEP_SECONDS = 0.4
NUM_TRIES = 2
DATA_SECONDS, DATA_BATCHES = 0.5, 8  # to time the loader
ADAM_COPIES = 4  # weights, gradients and two moments
logger = logging.getLogger("vitrail")


class Kernels(NamedTuple):
    """Number format, memory layout and attention kernel of training."""

    bfloat16: bool = False
    channels_last: bool = True
    fused_attention: bool = True

    def apply(self, model: nn.Module) -> None:
        """Apply layout and attention kernel to a model; the number format is up to autocast."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        model.to(memory_format=layout)  # type: ignore[call-overload]
        set_fused(model, fused=self.fused_attention)


class Cost(NamedTuple):
    """The cost of training in seconds and bytes."""

    bytes_per_image: float
    forward: float
    """Seconds per image."""
    backward: float
    update: float = 0.0
    """Seconds per step, for any batch size: clipping, optimizer, EMA."""
    data: float = 0.0
    """Seconds per image for reading, when nothing else runs."""
    overlaps: bool = False
    """Whether images are read while another device computes."""

    def images_per_second(self, batch_size: int) -> float:
        """Images per second, counting whole steps."""
        compute = self.forward + self.backward + self.update / batch_size
        return 1.0 / (max(compute, self.data) if self.overlaps else compute + self.data)


def measure_cost(
    model: nn.Module, objective: Classify, images: Tensor, labels: Tensor, world: World, *, bfloat16: bool
) -> Cost:
    """Time forward and backward passes on some of these images; the fastest counts, and the weights do not change.

    The first passes, on very few images, measure memory and decide how many images the next ones use.
    """
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    stored: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    few = min(NUM_FIRST, len(images))
    with _leaving_no_trace(model):
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            time_step(model, objective, images[:few], labels[:few], world, bfloat16=bfloat16)  # warms up too
        first = sum(time_step(model, objective, images[:few], labels[:few], world, bfloat16=bfloat16))
        num = int(min(len(images), max(few, few * MAX_STEP_SECONDS / first)))
        steps = [
            time_step(model, objective, images[:num], labels[:num], world, bfloat16=bfloat16)
            for _ in range(NUM_TRIES + 1)
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
) -> tuple[Kernels, Cost]:
    """Train in bfloat16 or float32, whichever is faster for this model, with the machine's kernels for it.

    `bfloat16` may be fixed.
    """

    def cost_of(kernels: Kernels) -> Cost:
        kernels.apply(model)
        return measure_cost(model, objective, images, labels, world, bfloat16=kernels.bfloat16)

    kernels = usual_kernels(world.device, bfloat16=bool(bfloat16))
    cost = cost_of(kernels)
    if bfloat16 is None and bfloat16_is_faster(world.device):
        other = usual_kernels(world.device, bfloat16=True)
        other_cost = cost_of(other)
        if cost.forward + cost.backward > PAYS * (other_cost.forward + other_cost.backward):
            kernels, cost = other, other_cost
    kernels.apply(model)
    return kernels, cost


def usual_kernels(device: torch.device, *, bfloat16: bool) -> Kernels:
    """The kernels of a number format: as measured on a CPU; fused attention and channels_last on a GPU."""
    if device.type != "cpu":
        return Kernels(bfloat16=bfloat16)
    dtype = "bfloat16" if bfloat16 else "float32"
    return Kernels(bfloat16, machine.uses_channels_last(dtype), machine.fuses_attention(dtype))


def time_forward(model: nn.Module, images: Tensor, world: World, *, bfloat16: bool = False) -> float:
    """Seconds per image of inference, timed on as many of these images as fit into a moment."""
    was_training = model.training
    model.eval()

    def run(num: int) -> float:
        with torch.no_grad(), torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16):
            return seconds_of(lambda: model(images[:num].to(world.device)), world.device)

    few = min(NUM_FIRST, len(images))
    run(few)
    num = int(min(len(images), max(few, few * MAX_STEP_SECONDS / run(few))))
    seconds = min(run(num) for _ in range(NUM_TRIES)) / num
    model.train(was_training)
    return seconds


def bfloat16_predicts_faster(model: nn.Module, images: Tensor, world: World) -> bool:
    """Whether inference with this model is clearly faster in bfloat16."""
    if not bfloat16_is_faster(world.device):
        return False
    plain, short = (time_forward(model, images, world, bfloat16=bfloat16) for bfloat16 in (False, True))
    return plain > PAYS * short


def time_update(model: nn.Module, update: Callable[[], None], world: World) -> float:
    """Seconds of a weight update; `update` must have a learning rate of zero, so that nothing changes."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    update()
    seconds = min(seconds_of(update, world.device) for _ in range(NUM_TRIES))
    model.zero_grad(set_to_none=True)
    return seconds


def time_data(loader: Loader) -> float:
    """Seconds per image of reading and augmentation, with all workers."""
    began, num = time.perf_counter(), 0
    batches = loader.batches()
    for batch in islice(batches, DATA_BATCHES):
        num += len(batch.images)
        seconds = time.perf_counter() - began
        if seconds > DATA_SECONDS:
            break
    batches.close()  # type: ignore[attr-defined]
    return seconds / max(1, num)


def compile_is_faster(
    model: nn.Module, objective: Classify, images: Tensor, labels: Tensor, world: World, *, bfloat16: bool
) -> bool:
    """Whether torch.compile makes training steps on these images faster; False if it fails."""
    compiled = torch.compile(model, dynamic=False)
    times: dict[int, list[float]] = {0: [], 1: []}
    with _leaving_no_trace(model):
        try:
            for _ in range(NUM_TRIES + 1):
                for index, network in enumerate((model, compiled)):
                    times[index].append(sum(time_step(network, objective, images, labels, world, bfloat16=bfloat16)))
        except Exception as error:  # noqa: BLE001 - no compiler here, or an unsupported model
            logger.info("torch.compile does not work here: %s", brief(error))
            return False
    plain, fast = (min(each[1:]) for each in times.values())
    return plain > PAYS * fast


@contextmanager
def _leaving_no_trace(model: nn.Module) -> Iterator[None]:
    """Steps in this context change neither the model nor later random numbers."""
    was_training, state = model.training, torch.get_rng_state()
    model.train()
    yield
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    torch.set_rng_state(state)


def time_step(
    model: Any, objective: Classify, images: Tensor, labels: Tensor, world: World, *, bfloat16: bool
) -> tuple[float, float]:
    """Seconds of a forward and of a backward pass."""
    started = now(world.device)
    with torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16):
        loss = objective(model, images.to(world.device), labels.to(world.device)).sum()
    between = now(world.device)
    loss.backward()
    return between - started, now(world.device) - between


def scale_image_size(spec: Any, factor: float) -> tuple[int, int]:
    """Scale a model's image size by a factor, rounded down to whole cells of its grid."""
    return tuple(
        max(1, round(side * factor) // (side // cells)) * (side // cells)
        for side, cells in zip(spec.image_size, spec.layout.grid, strict=True)
    )


def required_bytes(model: nn.Module, cost: Cost, num_images: float) -> float:
    """The memory for weights, gradients and moments, and for the activations of `num_images`."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return ADAM_COPIES * weights + num_images * cost.bytes_per_image


def choose_num_parts(model: nn.Module, cost: Cost, batch_size: int, world: World) -> int:
    """Choose the number of parts, a power of two, into which a batch must be split to fit in memory."""
    if world.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(world.device)
    else:
        free = psutil.virtual_memory().available / world.local_size
    local_batch, num_parts = batch_size // world.size, 1
    while required_bytes(model, cost, local_batch / num_parts) > free * MEMORY_FRACTION:
        num_parts *= 2
        if num_parts > local_batch:
            raise TrainError(
                "a single image does not fit in memory.",
                got=f"{free / 2**30:.1f} GiB free, {required_bytes(model, cost, 1) / 2**30:.1f} needed.",
                hint="a smaller --model, or a smaller model.image_size.",
            )
    return num_parts
