"""PyTorch's own files, which are pickles: inspected first, then loaded with the `weights_only` loader."""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from vitrail.errors import WeightsError

MAX_SHARING = 2  # tensor bytes to file bytes, as tensors may share storage
MAX_DIMS = 8  # of a tensor; a model of videos has 5
LEGACY_PICKLES = 4  # at the start of an old .pth: magic number, version, machine, contents
IMPORT_OPCODES = {"GLOBAL", "INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4"}  # they fetch something by name
ALLOWED = re.compile(
    r"collections\.OrderedDict|torch\._utils\._rebuild_(tensor|tensor_v2|parameter)|torch\.Size|torch\.\w+Storage"
)
STATE_DICT_KEYS = ("state_dict", "model", "module")  # where training scripts put the weights


def read_torch(path: Path) -> dict[str, Tensor]:
    """The tensors of a .pth or .bin file, new or old."""
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"  # PyTorch's own test; it ignores an archive appended to a pickle
    if zipped:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            compressed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
            if compressed:
                raise WeightsError(
                    f"{path.name} is compressed, and PyTorch never compresses.",
                    got=f"{compressed[0]!r}.",
                    hint="a fresh copy.",
                )
            for member in members:
                if member.filename.endswith(".pkl"):
                    _check_pickle(path, archive.open(member), num_pickles=1)
    else:
        with path.open("rb") as file:
            _check_pickle(path, file, num_pickles=LEGACY_PICKLES)
    checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    tensors = {key.removeprefix("module."): tensor for key, tensor in _find_state_dict(path, checkpoint).items()}
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if claimed > MAX_SHARING * path.stat().st_size:
        raise WeightsError(
            f"{path.name} claims more than it holds.",
            got=f"tensors of {claimed} bytes in a file of {path.stat().st_size}.",
            hint="a fresh copy.",
        )
    return {key: _copy(path, key, tensor) for key, tensor in tensors.items()}


def _check_pickle(path: Path, file: IO[bytes], *, num_pickles: int) -> None:
    """Refuse a pickle that names anything not needed to rebuild tensors, before it is loaded.

    PyTorch's safe loader runs no code, but it would allocate a bytearray of any size.
    """
    for _ in range(num_pickles):
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name not in IMPORT_OPCODES:
                continue
            name = str(argument).replace(" ", ".") if opcode.name in ("GLOBAL", "INST") else opcode.name
            if not ALLOWED.fullmatch(name):
                raise WeightsError(
                    f"{path.name} is a pickle that holds more than tensors, and loading it could run code.",
                    got=f"{name} in the pickle.",
                    hint="a safetensors file, or if you trust the file, saving only its state_dict.",
                )


def _find_state_dict(path: Path, checkpoint: object) -> Mapping[str, Tensor]:
    """The state_dict, wherever the training script has put it."""
    for _ in range(3):
        if not isinstance(checkpoint, Mapping):
            break
        if checkpoint and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in checkpoint.items()):
            return checkpoint
        checkpoint = next((checkpoint[name] for name in STATE_DICT_KEYS if name in checkpoint), None)
    raise WeightsError(
        f"{path.name} has no state_dict.", got=f"{type(checkpoint).__name__}.", hint="a file of named tensors."
    )


def check_dims(path: Path, key: str, num: int) -> None:
    """Refuse a tensor of more dimensions than any model has, before PyTorch computes with it."""
    if num > MAX_DIMS:
        raise WeightsError(
            f"{path.name} holds a tensor of too many dimensions.", got=f"{num} in {key[:80]!r}.", hint="another file."
        )


def _copy(path: Path, key: str, tensor: Tensor) -> Tensor:
    """A copy with its own memory. Refuses a tensor that is not dense or claims more than its storage holds."""
    check_dims(path, key, tensor.ndim)
    plain = tensor.layout == torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"
    if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise WeightsError(f"{path.name} holds a tensor that is not dense.", got=f"{key!r}.", hint="a dense copy.")
    return tensor.detach().clone().contiguous()
