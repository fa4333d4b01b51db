"""PyTorch's own files, which are pickles: looked through first, and then loaded by the safe loader alone."""

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

MAX_SHARING = 2  # times that tensors may claim a file's bytes, by sharing them
LEGACY_PICKLES = 4  # at the start of an old .pth: magic number, version, machine, contents
NAMING = {"GLOBAL", "INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4"}  # opcodes that fetch something by name
HARMLESS = re.compile(
    r"collections\.OrderedDict|torch\._utils\._rebuild_(tensor|tensor_v2|parameter)|torch\.Size|torch\.\w+Storage"
)
NESTED = ("state_dict", "model", "module")  # where training scripts put the weights


def read_torch(path: Path) -> dict[str, Tensor]:
    """The tensors of a .pth or .bin file, new or old."""
    with path.open("rb") as file:
        zipped = (
            file.read(2) == b"PK"
        )  # as PyTorch tells them apart; an archive at the end of a pickle counts for nothing
    if zipped:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            packed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
            if packed:
                raise WeightsError(
                    f"{path.name} is compressed, which PyTorch never does.", got=f"{packed[0]!r}.", hint="a new copy."
                )
            for member in members:
                if member.filename.endswith(".pkl"):
                    _check_pickle(path, archive.open(member), num_pickles=1)
    else:
        with path.open("rb") as file:
            _check_pickle(path, file, num_pickles=LEGACY_PICKLES)
    saved = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    found = {key.removeprefix("module."): tensor for key, tensor in _nested(path, saved).items()}
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    if claimed > MAX_SHARING * path.stat().st_size:
        raise WeightsError(
            f"{path.name} claims other sizes than it has.",
            got=f"tensors of {claimed} bytes in a file of {path.stat().st_size}.",
            hint="a new copy.",
        )
    return {key: _owned(path, key, tensor) for key, tensor in found.items()}


def _check_pickle(path: Path, file: IO[bytes], *, num_pickles: int) -> None:
    """Refuse a pickle that names anything but the makings of tensors, before it is loaded at all.

    PyTorch's safe loader runs no code, but it would make a bytearray of any size.
    """
    for _ in range(num_pickles):
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name not in NAMING:
                continue
            named = str(argument).replace(" ", ".") if opcode.name in ("GLOBAL", "INST") else opcode.name
            if not HARMLESS.fullmatch(named):
                raise WeightsError(
                    f"{path.name} is a pickle that holds more than tensors, and loading it could run code.",
                    got=f"{named} in the pickle.",
                    hint="a safetensors file, or save the bare state_dict again where you trust it.",
                )


def _nested(path: Path, saved: object) -> Mapping[str, Tensor]:
    """The mapping of names to tensors, wherever the training script has put it."""
    for _ in range(3):
        if not isinstance(saved, Mapping):
            break
        if saved and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in saved.items()):
            return saved
        saved = next((saved[name] for name in NESTED if name in saved), None)
    raise WeightsError(
        f"{path.name} has no state_dict.", got=f"{type(saved).__name__}.", hint="a file that has tensors by name."
    )


def _owned(path: Path, key: str, tensor: Tensor) -> Tensor:
    """A copy of a tensor's own, if it is a plain one that does not claim more than its storage has."""
    plain = tensor.layout == torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"
    if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise WeightsError(f"{path.name} holds a tensor that is no plain array.", got=f"{key!r}.", hint="a dense copy.")
    return tensor.detach().clone().contiguous()
