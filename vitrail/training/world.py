"""The processes of a run: one, or several under torchrun that share each batch (DDP, FSDP2)."""

from __future__ import annotations

import atexit
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitrail.batch import Fields
from vitrail.contract import Objective
from vitrail.errors import SpecError, TrainError, VitrailError, brief
from vitrail.training import shard as sharding
from vitrail.training.learner import Learner

T = TypeVar("T")
CALLS = count()  # numbers the calls of `fail_together`, alike on every process
TIMEOUT = timedelta(hours=1)  # rank 0 may search for duplicates while the others wait


class World(NamedTuple):
    """The rank of this process, the number of processes, and its device."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    local_size: int = 1
    """The number of processes on this machine."""

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def all_reduce_sum(self, *values: float) -> list[float]:
        """Sum each value over all processes."""
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(numbers)
        return numbers.tolist()

    def broadcast_flag(self, flag: bool) -> bool:
        """Return rank 0's flag on all processes."""
        return flag if self.size == 1 else self.all_reduce_sum(float(flag and self.is_rank_zero))[0] > 0

    def all_gather(self, part: T) -> list[T]:
        """Gather a value from each process, in the order of ranks."""
        if self.size == 1:
            return [part]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, part)
        return gathered

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on all processes."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]

    def on_rank_zero(self, function: Callable[[], T]) -> T:
        """Call a function on rank 0 only, and return its result on all processes."""
        return self.broadcast(function() if self.is_rank_zero else None)

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Return rank 0's tensors on all processes, sent one by one to save memory."""
        if self.size == 1:
            return dict(tensors or {})
        headers = self.on_rank_zero(
            lambda: [(name, tensor.shape, tensor.dtype) for name, tensor in (tensors or {}).items()]
        )
        received = {}
        for name, shape, dtype in headers:
            tensor = tensors[name].contiguous() if tensors and self.is_rank_zero else torch.empty(shape, dtype=dtype)
            dist.broadcast(tensor, 0)
            received[name] = tensor
        return received


def init_world() -> World:
    """Join the process group that torchrun's environment describes; without one, there is a single process."""
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if not _is_distributed():
        return World(device=device)
    if cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        store, rank, size = _rendezvous()
        # Scalars and objects always use gloo, so that they never wait for a GPU.
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        atexit.register(destroy_group)
    return World(dist.get_rank(), dist.get_world_size(), device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@cache
def _rendezvous() -> tuple[Store, int, int]:
    """Return the store of the process group, the rank, and the number of processes.

    torchrun keeps its store across restarts, with whatever dead processes left in it. So rank 0 first hands all live
    processes a fresh key prefix, in answer to the unique token that each of them posts.
    """
    store, rank, size = next(rendezvous("env://"))
    token = uuid.uuid4().hex
    if rank > 0:
        store.set(f"vitrail/hello/{rank}", token)
        token = store.get(f"vitrail/welcome/{token}").decode()
        store.set(f"vitrail/here/{token}/{rank}", "")
        return PrefixStore(token, store), rank, size
    for other in range(1, size):
        while not store.check([f"vitrail/here/{token}/{other}"]):
            if store.check([f"vitrail/hello/{other}"]):
                store.set(f"vitrail/welcome/{store.get(f'vitrail/hello/{other}').decode()}", token)
            time.sleep(0.01)
    return PrefixStore(token, store), rank, size


def destroy_group() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def is_rank_zero() -> bool:
    """Whether this process prints, judging by its environment."""
    return os.environ.get("RANK", "0") == "0" or not _is_distributed()


def _is_distributed() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def fail_together() -> Iterator[None]:
    """Let an error in one process end all of them; only the first one raises it, the others exit silently."""
    if not _is_distributed():
        yield
        return
    store, key = _rendezvous()[0], f"failed/{next(CALLS)}"
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if not _is_first(store, key):
            raise SystemExit(2 if isinstance(error, VitrailError) else 1) from None
        if _is_connection_error(error):
            raise TrainError(
                "another process of this run has exited.",
                got=brief(error).rpartition("] ")[2].partition(". ")[0].rstrip(".") + ".",
                hint="the same command again: it resumes from the last checkpoint.",
            ) from None
        raise


def _is_first(store: Store, key: str) -> bool:
    """Whether no other process has failed before; torchrun's store outlives the processes."""
    try:
        return store.add(key, 1) == 1
    except RuntimeError:  # the process that hosted the store is gone
        return False


def _is_connection_error(error: BaseException) -> bool:
    """Whether an error means that another process is unreachable."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def check_can_shard() -> None:
    """Refuse to shard a model with a single process."""
    if not dist.is_initialized():
        raise SpecError(
            "--shard needs several processes.",
            got="one process.",
            hint="torchrun --nproc-per-node 2 -m -- vitrail train ... --shard, or no --shard.",
        )


class _Gather(torch.autograd.Function):
    """Concatenates the tensors of all processes; gradients from all of them flow back to each."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, world: World) -> Tensor:
        ctx.world = world
        parts = [torch.empty_like(features) for _ in range(world.size)]
        dist.all_gather(parts, features.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient.chunk(ctx.world.size)[ctx.world.rank], None


def connect(objective: Objective, world: World) -> None:
    """Let a coupled objective see the features of all processes; of its own only, if there is one process."""
    objective.rank = world.rank
    if world.size > 1:
        objective.gather = lambda features: _Gather.apply(features, world)  # type: ignore[no-untyped-call]
    else:
        objective.__dict__.pop("gather", None)


def distribute(learner: Learner, world: World, example: Callable[[], Fields], *, shard: bool) -> nn.Module:
    """Wrap a learner for DDP, or shard a copy of it with FSDP2; return it unchanged for a single process.

    `example` returns the fields of any batch.
    """
    if shard:
        sharded = sharding.shard_learner(learner)
        connect(sharded.objective, world)
        return sharded
    if world.size == 1:
        return learner
    from torch.nn.parallel import DistributedDataParallel

    connect(learner.objective, world)
    device_ids = [world.device.index] if world.device.type == "cuda" else None
    wrapped = DistributedDataParallel(learner, device_ids=device_ids, gradient_as_bucket_view=True)
    # DDP rebuilds its gradient buckets after the first step, which changes the order of sums over three or more
    # processes. Doing that step here makes a resumed run sum like one that was not interrupted.
    wrapped({name: tensor.to(world.device) for name, tensor in example().items()}).sum().backward()
    wrapped.zero_grad(set_to_none=True)
    return wrapped
