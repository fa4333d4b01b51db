"""Checkpoints that survive anything: kill -9 at any instruction, a full disk, a flipped bit.

A checkpoint is a folder of safetensors files, a state.json and a manifest of their SHA-256 sums. It is written under a
temporary name, synced to disk, and renamed. A damaged checkpoint is skipped for the one before it. The files `latest`
and `best` name checkpoints for people; nothing depends on them. Nothing in a checkpoint is ever unpickled.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import Tensor

from vitrail import documents
from vitrail.errors import RunError, WeightsError, brief
from vitrail.files import remove_leftovers, sync_file, sync_folder, write_text
from vitrail.run.parts import TENSORS, Place, Writer, read_parts, write_whole
from vitrail.run.schema import MANIFEST_FILE, STATE_FILE
from vitrail.sums import sum_of

PART, REMOVED = ".part-", ".part-gone-"  # prefixes of checkpoints being written, and being removed
STEP = "step-"
MANIFEST, STATE = "manifest.json", "state.json"
LATEST, BEST = "latest", "best"
MISSING_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
logger = logging.getLogger("vitrail")


class Checkpoint(NamedTuple):
    """Tensors in named parts (model, ema, optimizer), and plain data."""

    parts: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def step_name(step: int) -> str:
    """The name of the checkpoint of a step; names sort by step."""
    return f"{STEP}{step:09d}"


def save(folder: Path, name: str, checkpoint: Checkpoint, *, write: Writer = write_whole) -> None:
    """Write a checkpoint atomically. `write` writes the tensors: all of them, or one process's part."""
    part = folder / f"{PART}{name}"
    try:
        if not folder.is_dir():
            folder.mkdir()
            sync_folder(folder.parent)
        _delete(part)
        part.mkdir()
        write(part, checkpoint.parts)
        (part / STATE).write_text(json.dumps(checkpoint.state, indent=1), encoding="utf-8")
        manifest = {path.name: sum_of(path) for path in sorted(part.iterdir())}
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
            hint="freeing disk space, then the same command again: it resumes from the last checkpoint.",
        ) from None


def point(folder: Path, which: str, name: str | None) -> None:
    """Let the file `latest` or `best` name a checkpoint; None removes the file."""
    if name is None:
        (folder / which).unlink(missing_ok=True)
    else:
        write_text(f"{name}\n", folder / which, RunError)


def load(
    folder: Path, name: str, *, place: Place | None = None, check: Callable[[Checkpoint], None] | None = None
) -> Checkpoint | None:
    """Load a checkpoint; None if it is missing, any byte of it has changed, or it is not what Vitrail writes.

    `place` as for `read_parts`; `check` raises ValueError for a checkpoint that does not fit the run.
    """
    path = folder / name
    try:
        manifest = documents.read_json(path / MANIFEST, MANIFEST_FILE)
        if not {STATE, *(file.name for file in path.glob(f"*{TENSORS}"))} <= manifest.keys():
            return None
        if any(sum_of(path / file) != expected for file, expected in manifest.items()):
            return None
        state = documents.read_json(path / STATE, STATE_FILE, finite=False)  # one sample has an infinite error
        checkpoint = Checkpoint(read_parts(path, place), state)
        if check is not None:
            check(checkpoint)
    except (*MISSING_ERRORS, ValueError, SafetensorError, WeightsError):
        return None
    except OSError as error:  # the checkpoint may be intact and only the disk unavailable: do not discard it
        raise RunError(
            f"the checkpoint {path} cannot be read.",
            got=brief(error),
            hint="the same command again once it can; without that folder it resumes from the one before.",
        ) from None
    return checkpoint


def newest(
    folder: Path, *, place: Place | None = None, check: Callable[[Checkpoint], None] | None = None
) -> tuple[str, Checkpoint] | None:
    """Load the newest intact checkpoint; damaged ones are reported and removed."""
    clean(folder)
    for path in sorted(folder.glob(f"{STEP}*"), reverse=True):
        found = load(folder, path.name, place=place, check=check)
        if found is not None:
            point(folder, LATEST, path.name)
            return path.name, found
        logger.warning("the checkpoint %s is damaged and skipped", path)
        remove(folder, path.name)
    return None


def remove(folder: Path, name: str) -> None:
    """Remove a checkpoint; it is renamed first, so that half of one is never mistaken for a complete one."""
    removed = folder / f"{REMOVED}{name}"
    _delete(removed)
    try:
        (folder / name).rename(removed)
    except OSError:
        return
    _delete(removed)


def remove_unless_only(folder: Path, name: str) -> None:
    """Remove a checkpoint if there is another."""
    if any(path.name != name for path in folder.glob(f"{STEP}*")):
        remove(folder, name)


def prune(folder: Path, keep: Iterable[str]) -> None:
    """Remove all checkpoints but these and the two newest."""
    steps = sorted(path.name for path in folder.glob(f"{STEP}*"))
    for name in sorted(set(steps[:-2]) - set(keep)):
        remove(folder, name)


def clean(folder: Path) -> None:
    """Delete what an interrupted save or removal left behind."""
    for path in folder.glob(f"{PART}*"):
        _delete(path)
    remove_leftovers(folder, (LATEST, BEST))


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether all tensors are free of NaN and infinity."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def _delete(path: Path) -> None:
    """Delete a folder or a file, if it exists and that is possible."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
