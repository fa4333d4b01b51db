"""The checkpoints of a run, written and read by all its processes together.

With DDP, rank 0 reads and writes, and broadcasts the tensors: only its machine has the run directory. With FSDP2, each
process reads and writes its own shards, in a folder that all machines share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import RunError
from vitrail.run import checkpoint as checkpoint_files
from vitrail.run.checkpoint import Checkpoint
from vitrail.run.parts import Kinds, Place, read_parts, write_parts
from vitrail.training.learner import Learner
from vitrail.training.run_progress import RunProgress
from vitrail.training.shard import is_sharded
from vitrail.training.world import World


class Checkpoints(NamedTuple):
    """The checkpoints of a learner in a folder."""

    folder: Path
    learner: Learner
    world: World

    def save(self, name: str, tensors: Kinds, state: dict[str, Any]) -> None:
        """Write a checkpoint; all processes must call this together."""
        sharded = is_sharded(self.learner)
        if self.world.is_rank_zero:
            checkpoint = Checkpoint({kind: dict(named) for kind, named in tensors.items()}, state)
            checkpoint_files.save(self.folder, name, checkpoint, **({"write": self._write} if sharded else {}))
        elif sharded:
            self._write(self.folder / f"{checkpoint_files.PART}{name}", tensors)
        self.world.barrier()  # a process that exits here would make torchrun kill rank 0 while it writes
        if sharded:
            self._check_shared(name)

    def _check_shared(self, name: str) -> None:
        if self.world.all_reduce_sum(float((self.folder / name).is_dir()))[0] < self.world.size:
            raise RunError(
                "with --shard, all machines write to the run directory.",
                got=f"{self.folder}, which not all of them can see.",
                hint="--run on a shared file system, or no --shard.",
            )

    def newest(self) -> tuple[str, Checkpoint] | None:
        """Load the newest intact checkpoint, with its name."""
        exists = self.world.is_rank_zero and self.folder.is_dir()
        return self._broadcast(
            checkpoint_files.newest(self.folder, place=self._allocator(), check=self._check) if exists else None
        )

    def load(self, name: str) -> Checkpoint | None:
        """Load a checkpoint; None if it is damaged."""
        found = self._load(name) if self.world.is_rank_zero else None
        result = self._broadcast(None if found is None else (name, found))
        return None if result is None else result[1]

    def has(self, name: str) -> bool:
        """Whether a checkpoint exists and is intact."""
        return self.world.broadcast_flag(self.world.is_rank_zero and self._load(name) is not None)

    def _load(self, name: str) -> Checkpoint | None:
        return checkpoint_files.load(self.folder, name, place=self._allocator(), check=self._check)

    def _check(self, checkpoint: Checkpoint) -> None:
        """ValueError unless state and tensors are what this learner would have saved."""
        RunProgress.from_state(checkpoint.state)
        shapes = {name: tensor.shape for name, tensor in self.learner.tensors().items()}
        stored = {name: tensor.shape for name, tensor in checkpoint.parts.get("model", {}).items()}
        if stored != shapes or "optimizer" not in checkpoint.parts:
            raise ValueError("other tensors than the model has")
        weights = dict(self.learner.named_weights())
        averages = {name: tensor.shape for name, tensor in checkpoint.parts.get("ema", {}).items()}
        owners = {name.rpartition(":")[0] for name in checkpoint.parts["optimizer"]}
        if not owners <= weights.keys() or not averages.items() <= shapes.items():
            raise ValueError("other tensors than the optimizer has")

    def _write(self, part: Path, tensors: Kinds) -> None:
        self.world.barrier()  # until rank 0 has created the folder
        write_parts(part, tensors)

    def _broadcast(self, found: tuple[str, Checkpoint] | None) -> tuple[str, Checkpoint] | None:
        """Broadcast the checkpoint that rank 0 has loaded."""
        description = self.world.broadcast(None if found is None else (found[0], found[1].state, list(found[1].parts)))
        if description is None:
            return None
        name, state, kinds = description
        if not is_sharded(self.learner):
            parts = {kind: self.world.broadcast_tensors(found[1].parts[kind] if found else None) for kind in kinds}
        else:
            parts = found[1].parts if found else read_parts(self.folder / name, self._allocator())
        return name, Checkpoint(parts, state)

    def _allocator(self) -> Place | None:
        """Return a function that allocates this process's shard of each tensor; None if it is not sharded."""
        if not is_sharded(self.learner):
            return None
        targets = self.learner.tensors()

        def allocate(kind: str, name: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
            target = targets.get(name.rpartition(":")[0] if kind == "optimizer" else name)
            if target is None or target.shape != size:  # such as AdamW's step count
                return torch.empty(size, dtype=dtype)
            return torch.empty_like(target, dtype=dtype)

        return allocate
