"""Checkpoints that survive anything: kill -9 at any instruction, a full disk, a flipped bit.

A checkpoint is a folder of safetensors files, a state.json and a manifest of their sha256 sums. It is written under
another name, brought to the disk, renamed, and only then does `latest` name it. A damaged one is passed over for the
one before it. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail.errors import RunError, brief
from vitrail.files import sync_folder, write_text

PART = ".part-"  # begins the name of what is not whole yet, or no longer
STEP = "step-"
MANIFEST, STATE = "manifest.json", "state.json"
LATEST, BEST = "latest", "best"
logger = logging.getLogger("vitrail")


class Checkpoint(NamedTuple):
    """Tensors in named parts (model, ema, optimizer) and plain data beside them."""

    parts: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def step_name(step: int) -> str:
    """The name of the checkpoint of a step; sorted by name they are sorted by step."""
    return f"{STEP}{step:09d}"


def save(folder: Path, name: str, checkpoint: Checkpoint, *, write_parts: Callable[[Path], None] | None = None) -> None:
    """Write a checkpoint; whole, or not at all. `write_parts` writes the tensors in another way, as shards do."""
    part = folder / f"{PART}{name}"
    try:
        folder.mkdir(exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        if write_parts is not None:
            write_parts(part)
        for key, tensors in checkpoint.parts.items():
            save_file(
                {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, part / f"{key}.safetensors"
            )
        (part / STATE).write_text(json.dumps(checkpoint.state, indent=1), encoding="utf-8")
        manifest = {path.name: _sum(path) for path in sorted(part.iterdir())}
        (part / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in part.iterdir():
            _sync_file(path)
        sync_folder(part)
        part.rename(folder / name)
        sync_folder(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise RunError(
            f"the checkpoint {name} cannot be written to {folder}.",
            got=brief(error),
            hint="more room on the disk, then the same command again: it goes on from the checkpoint before.",
        ) from None
    point(folder, LATEST, name)


def point(folder: Path, which: str, name: str) -> None:
    """Let `latest` or `best` name a checkpoint."""
    write_text(f"{name}\n", folder / which, RunError)
    sync_folder(folder)


def pointed(folder: Path, which: str) -> str | None:
    """The checkpoint that `latest` or `best` names."""
    try:
        return (folder / which).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def load(folder: Path, name: str) -> Checkpoint | None:
    """A checkpoint, if it is there and every byte of it is as it was written."""
    path = folder / name
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if any(_sum(path / file) != told for file, told in manifest.items()):
            return None
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        parts = {file.stem: load_file(file) for file in sorted(path.glob("*.safetensors"))}
    except (OSError, ValueError, SafetensorError):
        return None
    return Checkpoint(parts, state)


def newest(folder: Path) -> tuple[str, Checkpoint] | None:
    """The last checkpoint of a step that is whole; a damaged one is named, removed, and the one before it taken."""
    clean(folder)
    for path in sorted(folder.glob(f"{STEP}*"), reverse=True):
        found = load(folder, path.name)
        if found is not None:
            return path.name, found
        logger.warning("the checkpoint %s is damaged and passed over", path.name)
        remove(folder, path.name)
    return None


def remove(folder: Path, name: str) -> None:
    """Take a checkpoint away: first its name, so that half of one is never taken for a whole one."""
    gone = folder / f"{PART}{name}"
    shutil.rmtree(gone, ignore_errors=True)
    try:
        (folder / name).rename(gone)
    except OSError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def prune(folder: Path, keep: Iterable[str]) -> None:
    """Take away all checkpoints of steps but these and the two newest."""
    steps = sorted(path.name for path in folder.glob(f"{STEP}*"))
    for name in set(steps[:-2]) - set(keep):
        remove(folder, name)


def clean(folder: Path) -> None:
    """Take away what an interrupted save or removal left."""
    for path in folder.glob(f"{PART}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".*.??????*"):
        if path.is_file() and path.name.startswith((f".{LATEST}.", f".{BEST}.")):
            path.unlink(missing_ok=True)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_file(path: Path) -> None:
    with path.open("rb") as written:
        os.fsync(written.fileno())


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())
