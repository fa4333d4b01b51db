"""The checkpoints of a run, as all its processes write and read them together.

Where the processes hold copies of the model, the leader writes, reads, and hands the tensors out: only its machine has
the run. Where they hold parts of it, each process writes and reads its own, in a folder that all machines share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import RunError
from vitrail.run import checkpoint as kept
from vitrail.run.checkpoint import Checkpoint
from vitrail.run.parts import Kinds, Place, read_parts, write_parts
from vitrail.training.shard import is_sharded
from vitrail.training.world import World


class Checkpoints(NamedTuple):
    """The checkpoints in a folder, of a model that these processes train."""

    folder: Path
    model: nn.Module
    world: World

    def save(self, name: str, tensors: Kinds, state: dict[str, Any]) -> None:
        """Write a checkpoint; all processes must ask together."""
        cut = is_sharded(self.model)
        if self.world.is_rank_zero:
            checkpoint = Checkpoint({kind: dict(named) for kind, named in tensors.items()}, state)
            kept.save(self.folder, name, checkpoint, **({"write": self._write} if cut else {}))
        elif cut:
            self._write(self.folder / f"{kept.PART}{name}", tensors)
        self.world.barrier()  # or one that stops here would have torchrun end the leader, which may still be writing
        if cut:
            self._check_shared(name)

    def _check_shared(self, name: str) -> None:
        if self.world.all_reduce_sum(float((self.folder / name).is_dir()))[0] < self.world.size:
            raise RunError(
                "with --shard, all machines write into the run.",
                got=f"{self.folder}, which not all of them see.",
                hint="--run on a file system that they share, or no --shard.",
            )

    def newest(self) -> tuple[str, Checkpoint] | None:
        """The last checkpoint that is whole, and its name."""
        there = self.world.is_rank_zero and self.folder.is_dir()
        return self._hand_out(kept.newest(self.folder, place=self._place()) if there else None)

    def load(self, name: str) -> Checkpoint | None:
        """A checkpoint, if it is whole."""
        found = kept.load(self.folder, name, place=self._place()) if self.world.is_rank_zero else None
        handed_out = self._hand_out(None if found is None else (name, found))
        return None if handed_out is None else handed_out[1]

    def has(self, name: str) -> bool:
        """Whether a checkpoint is there and whole."""
        found = self.world.is_rank_zero and kept.load(self.folder, name, place=self._place()) is not None
        return self.world.broadcast_flag(found)

    def _write(self, part: Path, tensors: Kinds) -> None:
        self.world.barrier()  # until the leader has made the folder
        write_parts(part, tensors)

    def _hand_out(self, found: tuple[str, Checkpoint] | None) -> tuple[str, Checkpoint] | None:
        """What the leader found, for everybody."""
        told = self.world.broadcast(None if found is None else (found[0], found[1].state, list(found[1].parts)))
        if told is None:
            return None
        name, state, kinds = told
        if not is_sharded(self.model):
            parts = {kind: self.world.broadcast_tensors(found[1].parts[kind] if found else None) for kind in kinds}
        else:
            parts = found[1].parts if found else read_parts(self.folder / name, self._place())
        return name, Checkpoint(parts, state)

    def _place(self) -> Place | None:
        """Room for this process's part of each tensor; None, which is for all of it, if the model is not cut."""
        if not is_sharded(self.model):
            return None
        targets = self.model.state_dict()

        def place(kind: str, name: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
            target = targets.get(name.rpartition(":")[0] if kind == "optimizer" else name)
            if target is None or target.shape != size:  # such as the count of steps that AdamW keeps
                return torch.empty(size, dtype=dtype)
            return torch.empty_like(target, dtype=dtype)

        return place
