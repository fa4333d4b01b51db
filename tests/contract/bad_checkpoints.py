"""Malicious and damaged weight files, generated on the fly; run as a script, it loads them all in one process.

The script prints, as JSON, the error, the seconds and the growth of peak memory for each file.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

MODEL = "vit_mu_patch16_224"
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {}


def bad(message: str) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Register a function that writes a bad file, and the pattern that its error must match."""

    def register(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        BAD[make.__name__] = (make, message)
        return make

    return register


class Evil:
    """Runs code when it is unpickled: it creates the marker file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (os.system, (f"touch {self.marker}",))


def good_state() -> dict[str, torch.Tensor]:
    from vitrail import create_model

    return dict(create_model(MODEL).state_dict())


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def safetensors_with(header: dict[str, object], body: bytes = b"\0" * 64) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(begin: int, end: int, shape: list[int]) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


@bad("is a pickle that holds more than tensors(.|\n)*Got posix.system in the pickle")
def code_in_legacy_pickle(folder: Path) -> Path:
    return put(folder / "w.pth", pickle.dumps({"a": Evil(folder / "ran")}, protocol=2))


@bad("is a pickle that holds more than tensors(.|\n)*Got posix.system in the pickle")
def code_before_a_harmless_zip(folder: Path) -> Path:
    buffer = io.BytesIO()
    torch.save({"patch_embed.proj.weight": torch.zeros(3)}, buffer)
    return put(folder / "w.pth", pickle.dumps({"a": Evil(folder / "ran")}, protocol=2) + buffer.getvalue())


@bad("is a pickle that holds more than tensors(.|\n)*Got posix.system in the pickle")
def code_in_zip(folder: Path) -> Path:
    torch.save({"a": Evil(folder / "ran")}, folder / "w.pth")
    return folder / "w.pth"


@bad("is not what its name says")
def pickle_as_safetensors(folder: Path) -> Path:
    return put(folder / "w.safetensors", pickle.dumps({"a": Evil(folder / "ran")}, protocol=2))


@bad("is not what its name says")
def pickle_as_npz(folder: Path) -> Path:
    return put(folder / "w.npz", pickle.dumps({"a": Evil(folder / "ran")}, protocol=2))


@bad("is not what its name says")
def torch_zip_as_npz(folder: Path) -> Path:
    buffer = io.BytesIO()
    torch.save({"a": Evil(folder / "ran")}, buffer)
    return put(folder / "w.npz", buffer.getvalue())


@bad("holds Python objects, which could run code")
def npz_with_objects(folder: Path) -> Path:
    np.savez(folder / "w.npz", a=np.array([Evil(folder / "ran")], dtype=object))
    return folder / "w.npz"


@bad("has a header that does not match its size")
def npz_that_claims_16_gib(folder: Path) -> Path:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**16, 2**16)})
    with zipfile.ZipFile(folder / "w.npz", "w") as archive:
        archive.writestr("a.npy", header.getvalue()[:128])
    return folder / "w.npz"


@bad("unpacks to a suspicious size")
def npz_of_a_thousand_fold(folder: Path) -> Path:
    np.savez_compressed(folder / "w.npz", a=np.zeros(2**27, dtype=np.float32))
    return folder / "w.npz"


@bad("damaged or truncated")
def safetensors_overlapping(folder: Path) -> Path:
    return put(folder / "w.safetensors", safetensors_with({"a": entry(0, 64, [16]), "b": entry(32, 64, [8])}))


@bad("damaged or truncated")
def safetensors_with_a_hole(folder: Path) -> Path:
    return put(folder / "w.safetensors", safetensors_with({"a": entry(0, 16, [4]), "b": entry(32, 64, [8])}))


@bad("damaged or truncated")
def safetensors_without_offsets(folder: Path) -> Path:
    return put(folder / "w.safetensors", safetensors_with({"a": {"dtype": "F32", "shape": [16]}}))


@bad("damaged or truncated")
def safetensors_past_the_end(folder: Path) -> Path:
    return put(folder / "w.safetensors", safetensors_with({"a": entry(0, 2**34, [2**32])}))


@bad("damaged or truncated")
def safetensors_that_overflows(folder: Path) -> Path:
    return put(folder / "w.safetensors", safetensors_with({"a": entry(0, 2**64 - 1, [2**62, 2**62])}))


@bad("damaged or truncated")
def safetensors_with_a_huge_header(folder: Path) -> Path:
    return put(folder / "w.safetensors", struct.pack("<Q", 2**40) + b"{" + b" " * 100)


@bad("damaged or truncated")
def safetensors_cut(folder: Path) -> Path:
    whole = save(good_state())
    return put(folder / "w.safetensors", whole[: len(whole) // 2])


@bad("damaged or truncated")
def npz_cut(folder: Path) -> Path:
    buffer = io.BytesIO()
    np.savez(buffer, **{key: tensor.numpy() for key, tensor in good_state().items()})
    return put(folder / "w.npz", buffer.getvalue()[: buffer.tell() // 2])


@bad("damaged or truncated")
def npz_with_wrong_bytes(folder: Path) -> Path:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(1000.0))
    data = bytearray(buffer.getvalue())
    data[2000:2100] = b"x" * 100
    return put(folder / "w.npz", bytes(data))


@bad("damaged or truncated")
def torch_cut(folder: Path) -> Path:
    buffer = io.BytesIO()
    torch.save(good_state(), buffer)
    return put(folder / "w.pth", buffer.getvalue()[: buffer.tell() // 2])


@bad("damaged or truncated|holds more than tensors")
def legacy_torch_cut(folder: Path) -> Path:
    buffer = io.BytesIO()
    torch.save(good_state(), buffer, _use_new_zipfile_serialization=False)
    return put(folder / "w.pth", buffer.getvalue()[: buffer.tell() // 2])


@bad("is compressed, and PyTorch never compresses")
def torch_deflated(folder: Path) -> Path:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(2**22)}, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(folder / "w.pth", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return folder / "w.pth"


@bad("claims more than it holds")
def torch_tensor_larger_than_its_storage(folder: Path) -> Path:
    torch.save({"patch_embed.proj.weight": torch.zeros(1).expand(2**32)}, folder / "w.pth")
    return folder / "w.pth"


@bad("Got builtins.bytearray in the pickle|Got __builtin__.bytearray in the pickle")
def pickle_of_a_huge_bytearray(folder: Path) -> Path:
    return put(folder / "w.pth", b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x40\x85R.")


@bad("Got builtins.bytearray in the pickle")
def zip_of_a_huge_bytearray(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "w.pth", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x40\x85R.")
        archive.writestr("archive/version", "3")
    return folder / "w.pth"


@bad("claims more than it holds")
def torch_of_one_storage_for_all(folder: Path) -> Path:
    torch.save(dict.fromkeys(map(str, range(800)), torch.zeros(2**18)), folder / "w.pth")
    return folder / "w.pth"


def claiming_more(data: bytes) -> bytes:
    """The pickle of a tensor of 123 numbers, changed to claim two billion of them."""
    return data.replace(b"K{", b"J" + struct.pack("<i", 2**31 - 1))


@bad("damaged or truncated|is not dense")
def torch_that_claims_8_gib(folder: Path) -> Path:
    buffer = io.BytesIO()
    torch.save({"patch_embed.proj.weight": torch.zeros(123)}, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(folder / "w.pth", "w") as new:
        for name in old.namelist():
            new.writestr(name, claiming_more(old.read(name)) if name.endswith("data.pkl") else old.read(name))
    return folder / "w.pth"


@bad("damaged or truncated|is not dense")
def legacy_torch_that_claims_8_gib(folder: Path) -> Path:
    buffer = io.BytesIO()
    torch.save({"patch_embed.proj.weight": torch.zeros(123)}, buffer, _use_new_zipfile_serialization=False)
    return put(folder / "w.pth", claiming_more(buffer.getvalue()))


@bad("has no state_dict")
def torch_without_tensors(folder: Path) -> Path:
    torch.save({"epoch": 3, "lr": 0.1}, folder / "w.pth")
    return folder / "w.pth"


@bad("do not match vit_mu_patch16_224")
def wrong_shapes(folder: Path) -> Path:
    state = good_state()
    state["blocks.0.mlp.fc1.weight"] = torch.zeros(96, 32)
    return put(folder / "w.safetensors", save(state))


@bad("do not match vit_mu_patch16_224")
def a_tensor_missing(folder: Path) -> Path:
    state = good_state()
    del state["blocks.1.norm2.bias"]
    return put(folder / "w.safetensors", save(state))


@bad("do not match vit_mu_patch16_224")
def a_tensor_too_many(folder: Path) -> Path:
    return put(folder / "w.safetensors", save({**good_state(), "blocks.7.norm1.weight": torch.zeros(32)}))


@bad("values that are not finite")
def not_a_number(folder: Path) -> Path:
    state = good_state()
    state["norm.bias"][3] = float("nan")
    return put(folder / "w.safetensors", save(state))


@bad("values that are not finite")
def infinite(folder: Path) -> Path:
    state = good_state()
    state["norm.bias"][3] = float("inf")
    return put(folder / "w.safetensors", save(state))


@bad("names a file outside its own folder")
def index_that_climbs(folder: Path) -> Path:
    index = {"weight_map": {"norm.bias": "../../x"}}
    return put(folder / "model.safetensors.index.json", json.dumps(index).encode())


@bad("names a file outside its own folder")
def index_with_an_absolute_path(folder: Path) -> Path:
    index = {"weight_map": {"norm.bias": "/etc/passwd"}}
    return put(folder / "model.safetensors.index.json", json.dumps(index).encode())


@bad("names a file that does not exist")
def index_of_nothing(folder: Path) -> Path:
    index = {"weight_map": {"norm.bias": "model-1.safetensors"}}
    return put(folder / "model.safetensors.index.json", json.dumps(index).encode())


@bad("damaged or truncated")
def index_nested_deep(folder: Path) -> Path:
    return put(folder / "model.safetensors.index.json", b"[" * 100_000)


@bad("tensors of a type that Vitrail does not use")
def eighth_precision(folder: Path) -> Path:
    return put(folder / "w.safetensors", save({"norm.bias": torch.zeros(32).to(torch.float8_e4m3fn)}))


@bad("in a format that Vitrail does not know")
def another_network(folder: Path) -> Path:
    return put(folder / "w.safetensors", save({"conv1.weight": torch.zeros(4, 3, 3, 3)}))


@bad("not a weight file that Vitrail can read")
def empty(folder: Path) -> Path:
    return put(folder / "w.safetensors", b"")


@bad("not a weight file that Vitrail can read")
def text(folder: Path) -> Path:
    return put(folder / "w.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


@bad("has no tensors")
def no_tensors(folder: Path) -> Path:
    return put(folder / "w.safetensors", safetensors_with({}, b""))


@bad("is not a file")
def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.safetensors")
    return folder / "w.safetensors"


@bad("no weights in")
def an_empty_folder(folder: Path) -> Path:
    (folder / "weights").mkdir()
    return folder / "weights"


def peak_memory() -> int:
    """The process's peak resident memory in bytes since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM")


def load_all(root: Path) -> dict[str, dict[str, object]]:
    from vitrail import create_model
    from vitrail.errors import VitrailError

    paths = {}
    for name, (make, _) in BAD.items():
        (root / name).mkdir()
        paths[name] = make(root / name)
    create_model(MODEL)
    results: dict[str, dict[str, object]] = {}
    for name, path in paths.items():
        Path("/proc/self/clear_refs").write_text("5")
        before, started = peak_memory(), time.perf_counter()
        model = None
        try:
            model = create_model(MODEL, weights=path)
            error = "nothing was refused"
        except VitrailError as refused:
            error = str(refused)
        except Exception as other:  # noqa: BLE001 - reported, whatever it is
            error = f"{type(other).__name__} escaped: {other}"
        results[name] = {
            "error": error,
            "seconds": time.perf_counter() - started,
            "growth": peak_memory() - before,
            "loaded": model is not None,
            "ran": (root / name / "ran").exists(),
        }
    return results


if __name__ == "__main__":
    print(json.dumps(load_all(Path(sys.argv[1])), indent=2))
