"""The run directory: claimed by one process, begun once, gone on with by the same command, opened by everybody.

config.yaml              what was asked for, and all that was chosen
metrics.jsonl            losses and scores by step: the same for every run of the same seed
timing.jsonl             seconds and pictures a second, which are not
checkpoints/             what an interrupted run goes on from
model.safetensors, config.json, preprocessor_config.json, labels.json, calibration.json, golden.safetensors
predictions.csv          what the model says to each picture that it was judged on
account.json             how good it is by them
report.html, README.md   the same for people
result.json              the last one written: the run has ended
folds/, folds.json, out_of_fold.csv                     of a run in folds
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from vitrail.errors import RunError, brief
from vitrail.files import clean, write_text

CONFIG, RESULT, METRICS, TIMING, LOCK = "config.yaml", "result.json", "metrics.jsonl", "timing.jsonl", ".lock"
CHECKPOINTS = "checkpoints"
FOLDS = "folds.json"
OLD_NAMES = {"asked": "request", "chosen": "decisions", "looked": "scanned", "fit": "plan"}  # in config.yaml of 0.1
REPLACED = (
    *(CONFIG, RESULT, "model.safetensors", "config.json", "preprocessor_config.json"),
    *("labels.json", "calibration.json", "golden.safetensors", "README.md", "account.json", "predictions.csv"),
    *("report.html", "folds.json", "out_of_fold.csv"),
)
LONGEST = 2**16  # bytes of a line
MORE_ROOM = "more room on the disk, then the same command again: it goes on from the last checkpoint."
SHOWN = 3  # differences that are named
SMALLEST = 64 * 2**20  # bytes that must be free before a run begins


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """The directory for this process alone, made if it is not there; a second process is refused."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK)
        lock.acquire(timeout=0)
        clean(path, REPLACED)
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
    config = _current_names(config) if isinstance(config, dict) else {}
    if not isinstance(config.get("request"), dict):
        raise RunError(f"{path / CONFIG} is not that of a run.", got="other keys.", hint="another --run.")
    return config


def _current_names(config: dict[str, Any]) -> dict[str, Any]:
    """A config.yaml of version 0.1 under today's names."""
    config = {OLD_NAMES.get(key, key): value for key, value in config.items()}
    if isinstance(config.get("decisions"), dict):
        config["decisions"] = {OLD_NAMES.get(key, key): value for key, value in config["decisions"].items()}
    return config


def forget_unless_begun(path: Path) -> bool:
    """Take away what a run left that ended before its first step: a checkpoint of nothing learned, empty tables."""
    learned = (found for found in (path / CHECKPOINTS).glob("step-*") if found.name.rstrip("0") != "step-")
    if (path / RESULT).is_file() or any(learned):
        return False
    shutil.rmtree(path / CHECKPOINTS, ignore_errors=True)
    for name in (METRICS, TIMING):
        (path / name).unlink(missing_ok=True)
    return True


def check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was asked for in other words: nothing is overwritten by mistake."""
    then_all, now_all = flat(before), flat(now)
    changed = [key for key in sorted(then_all.keys() | now_all.keys()) if then_all.get(key) != now_all.get(key)]
    if changed:
        told = (f"{key} {now_all.get(key)!r} now, {then_all.get(key)!r} then" for key in changed[:SHOWN])
        raise RunError(
            f"{path} holds another run.",
            got="; ".join(told) + ("." if len(changed) <= SHOWN else f"; and {len(changed) - SHOWN} more."),
            hint="--run with another folder, or the same words as then to go on with it.",
        )


def flat(asked: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under names with dots, so that one that differs is named and not all of them."""
    fields: dict[str, Any] = {}
    for key, value in asked.items():
        fields |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return fields


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
    """A file of JSON lines, each there once it is added, that can be cut back to where a checkpoint was made."""

    def __init__(self, path: Path, num_bytes: int | None = 0) -> None:
        """`num_bytes` of it are kept; if that is None, all lines that are whole."""
        self.path = path
        with self._told():
            self.file = path.open("a+b", buffering=0)
            self.cut(self._whole() if num_bytes is None else num_bytes)

    def add(self, **record: Any) -> None:
        """One more line; JSON has no NaN, so what is not finite is told as null."""
        told = {key: value if value == value and abs(value) != float("inf") else None for key, value in record.items()}  # noqa: PLR0124
        waiting = memoryview((json.dumps(told) + "\n").encode())
        with self._told():
            while waiting:
                waiting = waiting[self.file.write(waiting) :]

    def sync(self) -> int:
        """Bring the lines to the disk, and tell how long the file is."""
        with self._told():
            os.fsync(self.file.fileno())
            return self.file.seek(0, os.SEEK_END)

    def cut(self, num_bytes: int) -> None:
        """Forget the lines after a checkpoint that is gone back to."""
        with self._told():
            # A file that somebody took away is shorter, and is not to be filled with zeros.
            self.file.truncate(min(num_bytes, self.file.seek(0, os.SEEK_END)))

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()

    def _whole(self) -> int:
        """The length without a last line that a kill cut short."""
        end = self.file.seek(0, os.SEEK_END)
        begin = self.file.seek(max(0, end - LONGEST))
        return begin + self.file.read(LONGEST).rfind(b"\n") + 1

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"{self.path} cannot be written.", got=brief(error), hint=MORE_ROOM) from None
