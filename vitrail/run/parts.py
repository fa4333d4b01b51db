"""The tensors of a checkpoint: one complete file per kind (model, ema, optimizer), or sharded, one file per process.

torch.distributed.checkpoint writes and reads the shards, with its safetensors storage (its default writes a pickle).
Tensors have names such as `model/norm.weight`, and the header of each file says where in the full tensor its part
belongs. Any number of processes, even one, can read what any other number wrote.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitrail.errors import RunError, brief
from vitrail.weights.tensor_files import read_safetensors, read_shapes

TENSORS = ".safetensors"
PARTS = f"shard-*{TENSORS}"  # as named by torch.distributed.checkpoint
Kinds = Mapping[str, Mapping[str, Tensor]]
Writer = Callable[[Path, Kinds], None]
Place = Callable[[str, str, torch.Size, torch.dtype], Tensor]
"""Allocates a tensor by its kind, name, shape and dtype: all of it, or this process's part."""


def write_whole(folder: Path, tensors: Kinds) -> None:
    """Write one file for each kind of tensors."""
    for kind, named in tensors.items():
        save_file({name: tensor.detach().contiguous() for name, tensor in named.items()}, folder / f"{kind}{TENSORS}")


def write_parts(folder: Path, tensors: Kinds) -> None:
    """Write this process's parts of the tensors; all processes must call this together."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    flat = {f"{kind}/{name}": tensor for kind, named in tensors.items() for name, tensor in named.items()}
    try:
        save(flat, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise RunError(
            f"the parts of the checkpoint {folder} cannot be written.",
            got=f"{brief(cause)} (process {rank})",
            hint="freeing disk space, then the same command again: it resumes from the checkpoint before.",
        ) from None


def read_parts(folder: Path, place: Place | None = None) -> dict[str, dict[str, Tensor]]:
    """Read the tensors of each kind; parts are read into the tensors that `place` allocates, by default full ones.

    A process may call this alone: it reads only what it allocates.
    """
    if not any(folder.glob(PARTS)):
        return {file.stem: read_safetensors(file) for file in sorted(folder.glob(f"*{TENSORS}"))}
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    for file in sorted(folder.glob(PARTS)):
        read_shapes(file)
    reader = HuggingFaceStorageReader(str(folder))
    flat: dict[str, Tensor] = {}
    for path, stored in reader.read_metadata().state_dict_metadata.items():
        kind, _, name = path.partition("/")
        size, dtype = stored.size, stored.properties.dtype  # type: ignore[union-attr]
        flat[path] = torch.empty(size, dtype=dtype) if place is None else place(kind, name, size, dtype)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each process reads on its own
            load(flat, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise cause if isinstance(cause, OSError) else ValueError(str(cause)) from None
    parts: dict[str, dict[str, Tensor]] = {}
    for path, tensor in flat.items():
        kind, _, name = path.partition("/")
        parts.setdefault(kind, {})[name] = tensor
    return parts
