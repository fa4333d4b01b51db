"""Read and write files of tensors. Every file is untrusted: checked before anything is allocated or run."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.lib import format as npy
from pydantic import Field, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail import documents
from vitrail.errors import WeightsError, brief
from vitrail.files import atomic_write
from vitrail.weights.torch_pickle import check_dims, read_torch

MAX_HEADER = 16 * 2**20  # bytes of a safetensors header; a ViT-G has 0.1 MiB
MAX_INDEX = 16 * 2**20  # bytes of an index of shards
MAX_TENSORS = 100_000  # a ViT-G has 600
MAX_RATIO = 100  # unpacked to packed size of an npz
SMALL = 16 * 2**20  # bytes below which the ratio is not checked
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
NUMBERS = FLOATS | {torch.int64, torch.int32, torch.uint8, torch.bool}
KIND_OF_SUFFIX = {".safetensors": "safetensors", ".npz": "npz", ".pth": "torch", ".pt": "torch", ".bin": "torch"}
Shapes = dict[str, tuple[int, ...]]
"""The shape of each tensor of a file."""
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


class TensorEntry(documents.Document):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: list[Annotated[int, Field(ge=0, le=2**48)]]
    data_offsets: tuple[int, int]


class ShardIndex(documents.Document):
    """An index of shards; `metadata` is not read."""

    weight_map: dict[str, str]
    metadata: dict[str, Any] | None = None


INDEX = TypeAdapter(ShardIndex)
HEADER: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, TensorEntry | dict[str, str]])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, of an index of shards, or of a folder with either."""
    if path.is_dir():
        found = [path / name for name in FOLDER_FILES if (path / name).is_file()]
        if not found:
            raise WeightsError(
                f"there are no weights in {path}.", got="a folder.", hint=f"a folder with {FOLDER_FILES[0]}."
            )
        path = found[0]
    if not path.is_file():
        raise WeightsError(f"{path} is not a file.", got="nothing to read.", hint="the path of a weight file.")
    if path.suffix == ".json":
        tensors: dict[str, Tensor] = {}
        for shard in _list_shards(path):
            tensors.update(_read_one(shard))
    else:
        tensors = _read_one(path)
    if not tensors:
        raise WeightsError(f"{path.name} has no tensors.", got=f"{path.stat().st_size} bytes.")
    for key, tensor in tensors.items():
        check_dims(path, key, tensor.ndim)
        if tensor.dtype not in NUMBERS:
            raise WeightsError(
                f"{path.name} holds tensors of a type that Vitrail does not use.",
                got=f"{tensor.dtype} in {key!r}.",
                hint="float32, float16 or bfloat16.",
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise WeightsError(
                f"{path.name} has values that are not finite.",
                got=f"NaN or infinity in {key!r}.",
                hint="an earlier checkpoint.",
            )
    return tensors


def _read_one(path: Path) -> dict[str, Tensor]:
    kind = _detect_kind(path)
    expected = KIND_OF_SUFFIX.get(path.suffix.lower())
    if expected is not None and expected != kind:
        raise WeightsError(
            f"{path.name} is not what its name says.",
            got=f"{'a pickle' if kind == 'torch' else kind} named *{path.suffix}.",
            hint="the right suffix, if you trust the source of the file.",
        )
    readers: dict[str, Callable[[Path], dict[str, Tensor]]] = {
        "safetensors": read_safetensors,
        "npz": _read_npz,
        "torch": read_torch,
    }
    try:
        return readers[kind](path)
    except (WeightsError, PermissionError):
        raise
    except Exception as error:  # noqa: BLE001 - fuzzing keeps finding new ones: zlib, tokenize, struct, assertions
        raise _damaged(path, error) from None


def _detect_kind(path: Path) -> str:
    """The kind of a file by its content, never by its name."""
    with path.open("rb") as file:
        head = file.read(16)
    if head[:2] == b"PK":
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise _damaged(path, error) from None
        if any(name.endswith(("/data.pkl", "/constants.pkl")) for name in names):
            return "torch"
        if names and all(name.endswith(".npy") for name in names):
            return "npz"
    elif head[8:9] == b"{":  # before pickles: the length of a header may start with the same byte
        return "safetensors"
    elif head[:1] == b"\x80":
        return "torch"
    raise WeightsError(
        f"{path.name} is not a weight file that Vitrail can read.",
        got=f"a file of {path.stat().st_size} bytes that starts with {head[:8]!r}.",
        hint="a safetensors, npz or pth file.",
    )


def _damaged(path: Path, error: Exception) -> WeightsError:
    return WeightsError(f"{path.name} is damaged or truncated.", got=brief(error), hint="a fresh copy.")


def read_shapes(path: Path) -> Shapes:
    """The shapes of the tensors of a safetensors file, from its header alone."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            num_bytes = int.from_bytes(file.read(8), "little")
            if num_bytes > min(MAX_HEADER, size - 8):
                raise ValueError(f"a header of {num_bytes} bytes in a file of {size}")
            header = documents.fit_json(file.read(num_bytes), HEADER)
    except ValueError as error:
        raise _damaged(path, error) from None
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise _damaged(path, ValueError(f"{len(header)} tensors"))
    shapes = {key: tuple(entry["shape"]) for key, entry in header.items()}
    for key, shape in shapes.items():
        check_dims(path, key, len(shape))
    return shapes


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, whose header is checked first."""
    read_shapes(path)
    try:
        # safetensors checks every offset against the file before mapping it.
        return {key: tensor.clone() for key, tensor in load_file(path).items()}
    except (ValueError, RuntimeError, SafetensorError) as error:
        raise _damaged(path, error) from None


def _read_npz(path: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > SMALL and unpacked > MAX_RATIO * path.stat().st_size:
            raise WeightsError(
                f"{path.name} unpacks to a suspicious size.",
                got=f"{unpacked} bytes from {path.stat().st_size}.",
                hint="an uncompressed file.",
            )
        return {member.filename.removesuffix(".npy"): _read_npy(path, archive, member) for member in members}


def _read_npy(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Tensor:
    """One array; its header is checked against the bytes present first."""
    with archive.open(member) as file:
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise WeightsError(
                f"{path.name} holds Python objects, which could run code.",
                got=f"an object array in {member.filename!r}.",
                hint="a file with plain numbers.",
            )
        claimed = math.prod(shape) * dtype.itemsize
        present = member.file_size - file.tell()
        if claimed != present or min(shape, default=0) < 0:
            raise WeightsError(
                f"{path.name} has a header that does not match its size.",
                got=f"{member.filename!r} of shape {shape} and {dtype}: {claimed} bytes, but {present} are present.",
                hint="a fresh copy.",
            )
        data = bytearray(file.read())
    if dtype.kind not in "fiub":
        raise WeightsError(f"{path.name} holds values that are not numbers.", got=f"{dtype} in {member.filename!r}.")
    array = np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")
    return torch.from_numpy(np.ascontiguousarray(array.astype(dtype.newbyteorder("="), copy=False)))


def _list_shards(index: Path) -> list[Path]:
    """The files listed in an index; each must be in the index's own folder."""
    try:
        names = set(documents.read_json(index, INDEX, max_bytes=MAX_INDEX)["weight_map"].values())
    except (OSError, ValueError) as error:
        raise _damaged(index, error) from None
    for name in names:
        if Path(name).name != name or "\\" in name or "\0" in name or name in ("", ".", ".."):
            raise WeightsError(
                f"{index.name} names a file outside its own folder.",
                got=f"{name!r}.",
                hint="an index with plain file names.",
            )
        if not (index.parent / name).is_file():
            raise WeightsError(
                f"{index.name} names a file that does not exist.", got=f"{name!r}.", hint="copying all shards."
            )
    return [index.parent / name for name in sorted(names)]


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors in the container that the suffix names, atomically."""
    kind = KIND_OF_SUFFIX.get(path.suffix.lower())
    if kind is None:
        raise WeightsError(
            "the suffix decides which kind of file is written.",
            got=f"{path.name!r}.",
            hint=f"{', '.join(KIND_OF_SUFFIX)}.",
        )
    with atomic_write(path, WeightsError) as part:
        if kind == "safetensors":
            _save_safetensors(tensors, part)
        elif kind == "npz":
            np.savez(part, **{key: tensor.numpy() for key, tensor in tensors.items()})  # type: ignore[arg-type]
        else:
            _save_pth(tensors, part)


def _save_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Tied tensors are stored under each of their names, because safetensors refuses shared memory."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    try:
        save_file(separate, path, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, in most cases
        raise OSError(str(error)) from None


def _save_pth(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        torch.save(dict(tensors), path)
    except RuntimeError as error:
        if any(source in str(error) for source in ("inline_container", "iostream")):  # the writer of torch's zip files
            raise OSError(str(error)) from None
        raise
