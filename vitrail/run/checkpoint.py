"""Checkpoints that survive anything: kill -9 at any instruction, a full disk, a flipped bit.

A checkpoint is a folder of safetensors files, a state.json and a manifest of their sha256 sums. It is written under
another name, brought to the disk, and renamed. A damaged one is passed over for the one before it. The files `latest`
and `best` name checkpoints for whoever looks; nothing depends on them. Nothing in a checkpoint is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import Tensor

from vitrail.errors import RunError, brief
from vitrail.files import clean as clean_replaced
from vitrail.files import sync_file, sync_folder, write_text
from vitrail.run.parts import Place, Writer, read_parts, write_whole

PART, GONE = ".part-", ".part-gone-"  # begin the names of what is not whole yet, or no longer
STEP = "step-"
MANIFEST, STATE = "manifest.json", "state.json"
LATEST, BEST = "latest", "best"
NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
logger = logging.getLogger("vitrail")


class Checkpoint(NamedTuple):
    """Tensors in named parts (model, ema, optimizer) and plain data beside them."""

    parts: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def step_name(step: int) -> str:
    """The name of the checkpoint of a step; sorted by name they are sorted by step."""
    return f"{STEP}{step:09d}"


def save(folder: Path, name: str, checkpoint: Checkpoint, *, write: Writer = write_whole) -> None:
    """Write a checkpoint; whole, or not at all. `write` writes the tensors: whole, or with other processes in parts."""
    part = folder / f"{PART}{name}"
    try:
        if not folder.is_dir():
            folder.mkdir()
            sync_folder(folder.parent)
        _delete(part)
        part.mkdir()
        write(part, checkpoint.parts)
        (part / STATE).write_text(json.dumps(checkpoint.state, indent=1), encoding="utf-8")
        manifest = {path.name: _sum(path) for path in sorted(part.iterdir())}
        (part / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in part.iterdir():
            sync_file(path)
        sync_folder(part)
        remove(folder, name)
        part.rename(folder / name)
        sync_folder(folder)
        point(folder, LATEST, name)
    except (OSError, SafetensorError, RunError) as error:
        _delete(part)
        raise RunError(
            f"the checkpoint {name} cannot be written to {folder}.",
            got=error.got if isinstance(error, RunError) else brief(error),
            hint="more room on the disk, then the same command again: it goes on from the last checkpoint.",
        ) from None


def point(folder: Path, which: str, name: str | None) -> None:
    """Let `latest` or `best` name a checkpoint, or none."""
    if name is None:
        (folder / which).unlink(missing_ok=True)
    else:
        write_text(f"{name}\n", folder / which, RunError)


def load(folder: Path, name: str, *, place: Place | None = None) -> Checkpoint | None:
    """A checkpoint, if it is there and every byte of it is as it was written; `place` as for `read_parts`."""
    path = folder / name
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or STATE not in manifest:
            return None
        if any(_sum(path / file) != told for file, told in manifest.items()):
            return None
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        parts = read_parts(path, place)
    except (*NOT_THERE, ValueError, SafetensorError):
        return None
    except OSError as error:  # perhaps it is whole, and only the way to it is not: nobody may throw it away
        raise RunError(
            f"the checkpoint {path} cannot be read.",
            got=brief(error),
            hint="the same command again when it can; if that folder is taken away, it goes on from the one before.",
        ) from None
    return Checkpoint(parts, state)


def newest(folder: Path, *, place: Place | None = None) -> tuple[str, Checkpoint] | None:
    """The last checkpoint of a step that is whole; a damaged one is named, removed, and the one before it taken."""
    clean(folder)
    for path in sorted(folder.glob(f"{STEP}*"), reverse=True):
        found = load(folder, path.name, place=place)
        if found is not None:
            point(folder, LATEST, path.name)
            return path.name, found
        logger.warning("the checkpoint %s is damaged and passed over", path)
        remove(folder, path.name)
    return None


def remove(folder: Path, name: str) -> None:
    """Take a checkpoint away: first its name, so that half of one is never taken for a whole one."""
    gone = folder / f"{GONE}{name}"
    _delete(gone)
    try:
        (folder / name).rename(gone)
    except OSError:
        return
    _delete(gone)


def leave(folder: Path, name: str) -> None:
    """Take a checkpoint away if there is another."""
    if any(path.name != name for path in folder.glob(f"{STEP}*")):
        remove(folder, name)


def prune(folder: Path, keep: Iterable[str]) -> None:
    """Take away all checkpoints of steps but these and the two newest."""
    steps = sorted(path.name for path in folder.glob(f"{STEP}*"))
    for name in sorted(set(steps[:-2]) - set(keep)):
        remove(folder, name)


def clean(folder: Path) -> None:
    """Take away what an interrupted save or removal left."""
    for path in folder.glob(f"{PART}*"):
        _delete(path)
    clean_replaced(folder, (LATEST, BEST))


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def _delete(path: Path) -> None:
    """A folder or a file, if it is there and can be taken away."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
