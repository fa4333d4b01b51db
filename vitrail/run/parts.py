"""The tensors of a checkpoint: whole in a file each, or in parts, each written by the process that holds it.

Parts are written and read by torch.distributed.checkpoint, in its safetensors storage (its usual one keeps a pickle): a
file a process, in which the tensors have names such as `model/norm.weight`, and whose header says where in the whole
each part belongs. Any number of processes, one included, can read what any other number wrote.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail.errors import RunError, brief

TENSORS = ".safetensors"
PARTS = f"shard-*{TENSORS}"  # the names that torch.distributed.checkpoint gives
Kinds = Mapping[str, Mapping[str, Tensor]]
Writer = Callable[[Path, Kinds], None]
Place = Callable[[str, str, torch.Size, torch.dtype], Tensor]
"""Room for a tensor, by its kind (model, ema, optimizer), name, shape and type: for all of it, or a process's part."""


def write_whole(folder: Path, tensors: Kinds) -> None:
    """A file for each kind of tensors."""
    for kind, named in tensors.items():
        save_file({name: tensor.detach().contiguous() for name, tensor in named.items()}, folder / f"{kind}{TENSORS}")


def write_parts(folder: Path, tensors: Kinds) -> None:
    """Each process writes its parts of the tensors, of each kind; all processes must ask together."""
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
            hint="more room on the disk, then the same command again: it goes on from the checkpoint before.",
        ) from None


def read_parts(folder: Path, place: Place | None = None) -> dict[str, dict[str, Tensor]]:
    """The tensors of each kind; where they lie in parts, into the room that `place` gives, by default for all of each.

    Processes may ask alone: each reads what it has room for.
    """
    if not any(folder.glob(PARTS)):
        return {file.stem: load_file(file) for file in sorted(folder.glob(f"*{TENSORS}"))}
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    flat: dict[str, Tensor] = {}
    for path, stored in reader.read_metadata().state_dict_metadata.items():
        kind, _, name = path.partition("/")
        size, dtype = stored.size, stored.properties.dtype  # type: ignore[union-attr]
        flat[path] = torch.empty(size, dtype=dtype) if place is None else place(kind, name, size, dtype)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each reads by itself
            load(flat, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise cause if isinstance(cause, OSError) else ValueError(str(cause)) from None
    parts: dict[str, dict[str, Tensor]] = {}
    for path, tensor in flat.items():
        kind, _, name = path.partition("/")
        parts.setdefault(kind, {})[name] = tensor
    return parts
