"""The run directory: claimed by one process, begun once, gone on with by the same command, opened by everybody.

config.yaml              what was asked for, and all that was chosen
metrics.jsonl            losses and scores by step: the same for every run of the same seed
timing.jsonl             seconds and pictures a second, which are not
checkpoints/             what an interrupted run goes on from
model.safetensors, config.json, preprocessor_config.json, labels.json, golden.safetensors, README.md, result.json
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from vitrail.errors import RunError, brief
from vitrail.files import write_text

CONFIG, RESULT, METRICS, TIMING, LOCK = "config.yaml", "result.json", "metrics.jsonl", "timing.jsonl", ".lock"
CHECKPOINTS = "checkpoints"
SMALLEST = 64 * 2**20  # bytes that must be free before a run begins


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """The directory for this process alone, made if it is not there; a second process is refused."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(
            f"{path} is in use by another process.", got="its lock taken.", hint="waiting for it, or another --run."
        ) from None
    except (OSError, NotImplementedError) as error:
        raise RunError(
            f"{path} cannot be written.", got=brief(error), hint="--run with a folder that you may write to."
        ) from None
    try:
        yield
    finally:
        lock.release()
        if not (path / CONFIG).exists():  # nothing was begun: nothing is left
            (path / LOCK).unlink(missing_ok=True)
            for folder in made:
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()


def check_room(path: Path, num_bytes: int) -> None:
    """Refuse a disk on which the checkpoints of the run will not fit."""
    status = os.statvfs(path)
    free, needed = status.f_bavail * status.f_frsize, max(SMALLEST, num_bytes)
    if free < needed:
        raise RunError(
            f"there is too little room for the run in {path}.",
            got=f"{free / 2**20:,.0f} MiB free, where checkpoints need {needed / 2**20:,.0f}.",
            hint="--run on another disk.",
        )


def stored_config(path: Path) -> dict[str, Any] | None:
    """What a run that was begun here was asked and chose; None if nothing was begun."""
    if not (path / CONFIG).is_file():
        others = sorted(found.name for found in path.iterdir() if found.name != LOCK)
        if others:
            raise RunError(
                f"{path} is no run and not empty.",
                got=", ".join(others[:3]) + ("." if len(others) <= 3 else f" and {len(others) - 3} more."),
                hint="--run with a new folder.",
            )
        return None
    try:
        config = yaml.safe_load((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RunError(f"{path / CONFIG} cannot be read.", got=brief(error), hint="another --run.") from None
    if not isinstance(config, dict) or not isinstance(config.get("asked"), dict):
        raise RunError(f"{path / CONFIG} is not that of a run.", got="other keys.", hint="another --run.")
    return config


def check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was asked for in other words: nothing is overwritten by mistake."""
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise RunError(
                f"{path} holds another run.",
                got=f"{key}: {now.get(key)!r} now, {before.get(key)!r} then.",
                hint="--run with another folder, or the same words as then to go on with it.",
            )


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Keep what was asked and what was chosen."""
    write_text(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True), path / CONFIG, RunError)


def write_json(path: Path, document: Any) -> None:
    """A JSON file; whole, or not at all."""
    write_text(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n", path, RunError)


def read_result(path: Path) -> dict[str, Any] | None:
    """The result of a run that has ended."""
    try:
        return json.loads((path / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


class Lines:
    """A file of JSON lines that can be cut back to where a checkpoint was made."""

    def __init__(self, path: Path, num_bytes: int | None = 0) -> None:
        self.path = path
        try:
            self.file = path.open("a+b")
            if num_bytes is not None:
                self.file.truncate(num_bytes)
            self.file.seek(0, os.SEEK_END)
        except OSError as error:
            raise RunError(f"{path} cannot be written.", got=brief(error), hint="another --run.") from None

    def add(self, **record: Any) -> None:
        """One more line; JSON has no NaN, so what is not finite is told as null."""
        told = {key: value if value == value and abs(value) != float("inf") else None for key, value in record.items()}  # noqa: PLR0124
        self.file.write((json.dumps(told) + "\n").encode())

    def sync(self) -> int:
        """Bring the lines to the disk, and tell how long the file is."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def cut(self, num_bytes: int) -> None:
        """Forget the lines after a checkpoint that is gone back to."""
        self.file.flush()
        self.file.truncate(num_bytes)
        self.file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()
