"""The speed of training and inference on this machine, and the fastest number format, memory layout and kernels.

Everything is timed on the learner itself. A forecast counts the whole step: data, forward, backward, update.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import psutil
import torch
from torch import Tensor, nn

from vitrail import machine
from vitrail.batch import Fields, count_rows, first_rows
from vitrail.data.loader import Loader
from vitrail.errors import TrainError, brief
from vitrail.machine import PAYS, bfloat16_is_faster, now, seconds_of
from vitrail.nn.attention.full import set_fused
from vitrail.training.world import World

MEMORY_FRACTION = 0.6  # of the free memory
NUM_FIRST = 4  # samples of the first step, which measures memory
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

    def apply(self, learner: nn.Module) -> None:
        """Apply layout and attention kernel; the number format is up to autocast."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        for root in (learner, *getattr(learner, "frozen", ())):
            for module in root.modules():
                if isinstance(module, nn.Conv2d):
                    module.to(memory_format=layout)  # type: ignore[call-overload]
        set_fused(learner, fused=self.fused_attention)


class Cost(NamedTuple):
    """The cost of training in seconds and bytes."""

    bytes_per_sample: float
    forward: float
    """Seconds per sample."""
    backward: float
    update: float = 0.0
    """Seconds per step, for any batch size: clipping, optimizer, EMA."""
    data: float = 0.0
    """Seconds per sample for reading, when nothing else runs."""
    overlaps: bool = False
    """Whether data is read while another device computes."""
    passes: int = 1
    """Forward and backward passes per step."""

    def samples_per_second(self, batch_size: int) -> float:
        """Samples per second, counting whole steps."""
        compute = self.passes * (self.forward + self.backward) + self.update / batch_size
        return 1.0 / (max(compute, self.data) if self.overlaps else compute + self.data)


def measure_cost(learner: nn.Module, fields: Fields, world: World, *, bfloat16: bool) -> Cost:
    """Time forward and backward passes on some of these samples; the fastest counts, and the weights do not change.

    The first passes, on very few samples, measure memory and decide how many samples the next ones use.
    """
    weights = {parameter.untyped_storage().data_ptr() for parameter in learner.parameters()}
    stored: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    num_rows = count_rows(fields)
    few = min(NUM_FIRST, num_rows)
    with _leaving_no_trace(learner):
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            time_step(learner, first_rows(fields, few), world, bfloat16=bfloat16)  # warms up too
        first = sum(time_step(learner, first_rows(fields, few), world, bfloat16=bfloat16))
        num = int(min(num_rows, max(few, few * MAX_STEP_SECONDS / first)))
        part = first_rows(fields, num)
        steps = [time_step(learner, part, world, bfloat16=bfloat16) for _ in range(NUM_TRIES + 1)]
    forward, backward = min(steps[1:], key=sum)
    return Cost(sum(stored.values()) / few, forward / num, backward / num)


def choose_kernels(
    learner: nn.Module, fields: Fields, world: World, *, bfloat16: bool | None = None
) -> tuple[Kernels, Cost]:
    """Train in bfloat16 or float32, whichever is faster for this learner, with the machine's kernels for it.

    `bfloat16` may be fixed.
    """

    def cost_of(kernels: Kernels) -> Cost:
        kernels.apply(learner)
        return measure_cost(learner, fields, world, bfloat16=kernels.bfloat16)

    kernels = usual_kernels(world.device, bfloat16=bool(bfloat16))
    cost = cost_of(kernels)
    if bfloat16 is None and bfloat16_is_faster(world.device):
        other = usual_kernels(world.device, bfloat16=True)
        other_cost = cost_of(other)
        if cost.forward + cost.backward > PAYS * (other_cost.forward + other_cost.backward):
            kernels, cost = other, other_cost
    kernels.apply(learner)
    return kernels, cost


def usual_kernels(device: torch.device, *, bfloat16: bool) -> Kernels:
    """The kernels of a number format: as measured on a CPU; fused attention and channels_last on a GPU."""
    if device.type != "cpu":
        return Kernels(bfloat16=bfloat16)
    dtype = "bfloat16" if bfloat16 else "float32"
    return Kernels(bfloat16, machine.uses_channels_last(dtype), machine.fuses_attention(dtype))


def time_answers(learner: nn.Module, fields: Fields, world: World, *, bfloat16: bool = False) -> float:
    """Seconds per sample of evaluation, timed on as many of these samples as fit into a moment."""
    was_training = learner.training
    learner.eval()

    def run(num: int) -> float:
        part = first_rows(fields, num)
        with torch.no_grad(), torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16):
            return seconds_of(lambda: learner(to_device(part, world), evaluating=True), world.device)

    num_rows = count_rows(fields)
    few = min(NUM_FIRST, num_rows)
    run(few)
    num = int(min(num_rows, max(few, few * MAX_STEP_SECONDS / run(few))))
    seconds = min(run(num) for _ in range(NUM_TRIES)) / num
    learner.train(was_training)
    return seconds


def bfloat16_answers_faster(learner: nn.Module, fields: Fields, world: World) -> bool:
    """Whether evaluation is clearly faster in bfloat16."""
    if not bfloat16_is_faster(world.device):
        return False
    plain, short = (time_answers(learner, fields, world, bfloat16=bfloat16) for bfloat16 in (False, True))
    return plain > PAYS * short


def time_update(learner: nn.Module, update: Callable[[], None], world: World) -> float:
    """Seconds of a weight update; `update` must have a learning rate of zero, so that nothing changes."""
    for parameter in learner.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    update()
    seconds = min(seconds_of(update, world.device) for _ in range(NUM_TRIES))
    learner.zero_grad(set_to_none=True)
    return seconds


def time_data(loader: Loader) -> float:
    """Seconds per sample of reading and augmentation, with all workers."""
    began, num = time.perf_counter(), 0
    batches = loader.batches()
    for batch in islice(batches, DATA_BATCHES):
        num += batch.num
        seconds = time.perf_counter() - began
        if seconds > DATA_SECONDS:
            break
    batches.close()  # type: ignore[attr-defined]
    return seconds / max(1, num)


def compile_is_faster(learner: nn.Module, fields: Fields, world: World, *, bfloat16: bool) -> bool:
    """Whether torch.compile makes training steps on these samples faster; False if it fails."""
    compiled = torch.compile(learner, dynamic=False)
    times: dict[int, list[float]] = {0: [], 1: []}
    with _leaving_no_trace(learner):
        try:
            for _ in range(NUM_TRIES + 1):
                for index, each in enumerate((learner, compiled)):
                    times[index].append(sum(time_step(each, fields, world, bfloat16=bfloat16)))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - no compiler here, or an unsupported model
            logger.info("torch.compile does not work here: %s", brief(error))
            return False
    plain, fast = (min(each[1:]) for each in times.values())
    return plain > PAYS * fast


@contextmanager
def _leaving_no_trace(learner: nn.Module) -> Iterator[None]:
    """Steps in this context change neither the learner nor later random numbers."""
    was_training, state = learner.training, torch.get_rng_state()
    learner.train()
    yield
    learner.zero_grad(set_to_none=True)
    learner.train(was_training)
    torch.set_rng_state(state)


def time_step(learner: nn.Module, fields: Fields, world: World, *, bfloat16: bool) -> tuple[float, float]:
    """Seconds of a forward and of a backward pass."""
    started = now(world.device)
    with torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16):
        loss = learner(to_device(fields, world)).sum()
    between = now(world.device)
    loss.backward()
    return between - started, now(world.device) - between


def to_device(fields: Fields, world: World) -> Fields:
    """Move fields to the device of this process."""
    return {name: tensor.to(world.device) for name, tensor in fields.items()}


def required_bytes(learner: nn.Module, cost: Cost, num_samples: float) -> float:
    """The memory for weights, gradients and moments, and for the activations of `num_samples`."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in learner.parameters())
    return ADAM_COPIES * weights + num_samples * cost.bytes_per_sample


def choose_num_parts(learner: nn.Module, cost: Cost, batch_size: int, world: World) -> int:
    """Choose the number of parts, a power of two, into which a batch must be split to fit in memory."""
    if world.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(world.device)
    else:
        free = psutil.virtual_memory().available / world.local_size
    local_batch, num_parts = batch_size // world.size, 1
    while required_bytes(learner, cost, local_batch / num_parts) > free * MEMORY_FRACTION:
        num_parts *= 2
        if num_parts > local_batch:
            raise TrainError(
                "a single sample does not fit in memory.",
                got=f"{free / 2**30:.1f} GiB free, {required_bytes(learner, cost, 1) / 2**30:.1f} needed.",
                hint="a smaller --model, or smaller inputs.",
            )
    return num_parts
