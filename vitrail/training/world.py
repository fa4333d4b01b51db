"""The processes of a run: one, or many under torchrun, which see the same batches together (DDP, FSDP2)."""

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

from vitrail.errors import SpecError, TrainError, VitrailError, brief
from vitrail.training import shard as parts

T = TypeVar("T")
CALLS = count()  # of what is done together, which every process numbers alike
PATIENCE = timedelta(hours=1)  # with a process that is busy alone: the leader may look for duplicates for long


class World(NamedTuple):
    """This process among all of them."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    local_size: int = 1
    """The processes on this machine."""

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def barrier(self) -> None:
        """Until all processes have come this far."""
        if self.size > 1:
            dist.barrier()

    def all_reduce_sum(self, *values: float) -> list[float]:
        """The sums over all processes."""
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(numbers)
        return numbers.tolist()

    def broadcast_flag(self, leader_says: bool) -> bool:
        """What the leader says."""
        return leader_says if self.size == 1 else self.all_reduce_sum(float(leader_says and self.is_rank_zero))[0] > 0

    def all_gather(self, part: T) -> list[T]:
        """Each process's part, in the order of ranks, for everybody."""
        if self.size == 1:
            return [part]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, part)
        return gathered

    def broadcast(self, value: Any) -> Any:
        """The leader's value, for everybody."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]

    def on_rank_zero(self, choose: Callable[[], T]) -> T:
        """What the leader finds, for everybody; the others wait."""
        return self.broadcast(choose() if self.is_rank_zero else None)

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """The leader's tensors, for everybody, one after the other: never all of them once more in memory."""
        if self.size == 1:
            return dict(tensors or {})
        told = self.on_rank_zero(
            lambda: [(name, tensor.shape, tensor.dtype) for name, tensor in (tensors or {}).items()]
        )
        shared = {}
        for name, shape, dtype in told:
            tensor = tensors[name].contiguous() if tensors and self.is_rank_zero else torch.empty(shape, dtype=dtype)
            dist.broadcast(tensor, 0)
            shared[name] = tensor
        return shared


def join() -> World:
    """This process's place, as torchrun's environment tells it; alone where there is none."""
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if not _is_one_of_many():
        return World(device=device)
    if cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        store, rank, size = _meet()
        # Numbers and words go by gloo in either case, so that they wait for no GPU.
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        atexit.register(leave)
    return World(dist.get_rank(), dist.get_world_size(), device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@cache
def _meet() -> tuple[Store, int, int]:
    """The store in which the processes find each other, the rank, and their number.

    torchrun keeps its store when it starts the processes again, and with it what the dead ones left there. So the
    leader first gives those that live a word for their keys, by answering each one's own word.
    """
    store, rank, size = next(rendezvous("env://"))
    word = uuid.uuid4().hex
    if rank > 0:
        store.set(f"vitrail/hello/{rank}", word)
        word = store.get(f"vitrail/welcome/{word}").decode()
        store.set(f"vitrail/here/{word}/{rank}", "")
        return PrefixStore(word, store), rank, size
    for other in range(1, size):
        while not store.check([f"vitrail/here/{word}/{other}"]):
            if store.check([f"vitrail/hello/{other}"]):
                store.set(f"vitrail/welcome/{store.get(f'vitrail/hello/{other}').decode()}", word)
            time.sleep(0.01)
    return PrefixStore(word, store), rank, size


def leave() -> None:
    """Let go of the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def is_rank_zero() -> bool:
    """Whether this process prints, as far as its environment tells."""
    return os.environ.get("RANK", "0") == "0" or not _is_one_of_many()


def _is_one_of_many() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def together() -> Iterator[None]:
    """What goes wrong in one process ends all of them, with one message: the first one's. The others end in silence."""
    if not _is_one_of_many():
        yield
        return
    store, key = _meet()[0], f"failed/{next(CALLS)}"
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if not _is_first(store, key):
            raise SystemExit(2 if isinstance(error, VitrailError) else 1) from None
        if _is_lost(error):
            raise TrainError(
                "another process of this run has ended.",
                got=brief(error).rpartition("] ")[2].partition(". ")[0].rstrip(".") + ".",
                hint="the same command again: it goes on from the last checkpoint.",
            ) from None
        raise


def _is_first(store: Store, key: str) -> bool:
    """Whether no other process has failed before; torchrun's store outlives all of them."""
    try:
        return store.add(key, 1) == 1
    except RuntimeError:  # the store is gone with the process that had it
        return False


def _is_lost(error: BaseException) -> bool:
    """Whether an error means that another process cannot be reached."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def check_shard() -> None:
    """Refuse to cut a model over a single process."""
    if not dist.is_initialized():
        raise SpecError(
            "--shard cuts the model over several processes.",
            got="one process.",
            hint="torchrun --nproc-per-node 2 -m -- vitrail train ... --shard, or no --shard.",
        )


def spread(model: nn.Module, world: World, example: Tensor, *, shard: bool) -> nn.Module:
    """The model as all processes train it: copies that average their gradients, or a copy that is cut in parts.

    `example` is a batch of any pictures.
    """
    if shard:
        return parts.cut(model)
    if world.size == 1:
        return model
    from torch.nn.parallel import DistributedDataParallel

    device_ids = [world.device.index] if world.device.type == "cuda" else None
    copies = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)
    # DDP orders the gradients anew after its first step, and with them the sums of three processes and more. Done here,
    # a run that goes on adds up as the one that was not interrupted.
    copies(example.to(world.device)).sum().backward()
    copies.zero_grad(set_to_none=True)
    return copies
