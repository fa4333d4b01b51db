"""The run directory: locked by one process, started once, resumed by the same command, readable by everybody.

config.yaml              the request, and everything chosen automatically
metrics.jsonl            losses and scores by step, identical for every run with the same seed
timing.jsonl             seconds and images per second, which vary
checkpoints/             what an interrupted run resumes from
stages/NAME/             metrics, timing and checkpoints of each stage, of a recipe that trains several models
model.safetensors, config.json, preprocessor_config.json, labels.json, calibration.json, golden.safetensors
tokenizer.json, tokenizer_config.json, translations.csv   of a run on text
scaling.json             what more images would bring to the probe, of a run of auto with weights
predictions.csv          the prediction for each evaluated image
account.json             the scores computed from them
report.html, README.md   the same for people
SHA256SUMS               the sums of the files above, which are checked when they are read
result.json              written last: the run has finished
folds/, folds.json, out_of_fold.csv                     of a run with folds
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from vitrail import documents
from vitrail.errors import RunError, VitrailError, brief
from vitrail.files import remove_leftovers, write_text
from vitrail.run.schema import CONFIG_FILE, RESULT_FILE
from vitrail.sums import SUMS, check_sum, write_sums

CONFIG, RESULT, METRICS, TIMING, LOCK = "config.yaml", "result.json", "metrics.jsonl", "timing.jsonl", ".lock"
CHECKPOINTS, STAGES = "checkpoints", "stages"
FOLDS, SCALING = "folds.json", "scaling.json"
OLD_NAMES = {"asked": "request", "chosen": "decisions", "looked": "scanned", "fit": "plan"}  # in config.yaml of 0.1
ATOMIC_FILES = (
    *(CONFIG, RESULT, "model.safetensors", "config.json", "preprocessor_config.json"),
    *("labels.json", "calibration.json", "golden.safetensors", "README.md", "account.json", "predictions.csv"),
    *("report.html", FOLDS, SCALING, "out_of_fold.csv"),
    *("tokenizer.json", "tokenizer_config.json", "translations.csv", "decoder.safetensors", SUMS),
)
EDITABLE = {CONFIG, RESULT, "README.md", "report.html", FOLDS, "out_of_fold.csv", SUMS}
SUMMED_FILES = (*(name for name in ATOMIC_FILES if name not in EDITABLE), METRICS)
"""The files whose sums are listed at the end of a run; config.yaml ends with its own, and result.json is added."""
CONFIG_SUM = re.compile(rb"(.*\n)# SHA-256 of the lines above: ([0-9a-f]{64})\n?", re.DOTALL)
MAX_LINE_BYTES = 2**16
MAX_TABLE_BYTES = 2**28  # a million predictions
FREE_SPACE = "freeing disk space, then the same command again: it resumes from the last checkpoint."
MAX_DIFFERENCES = 3  # that an error message names
MIN_FREE_BYTES = 64 * 2**20  # before a run starts


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Lock the directory for this process, creating it if necessary; a second process is refused."""
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK)
        lock.acquire(timeout=0)
        remove_leftovers(path, ATOMIC_FILES)
    except Timeout:
        raise RunError(
            f"{path} is in use by another process.", got="a locked folder.", hint="waiting for it, or another --run."
        ) from None
    except (OSError, NotImplementedError) as error:
        raise RunError(f"{path} cannot be written.", got=brief(error), hint="--run with a writable folder.") from None
    try:
        yield
    finally:
        lock.release()
        if not (path / CONFIG).exists():  # the run never started: leave nothing behind
            (path / LOCK).unlink(missing_ok=True)
            for folder in created:
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()


def stage_dir(path: Path, names: Sequence[str]) -> Path:
    """The folder of a stage, or of a stage of a stage; the run's own without names."""
    for name in names:
        path = path / STAGES / name
    return path


def check_disk_space(path: Path, num_bytes: int) -> None:
    """Refuse a disk that is too full for the checkpoints of the run."""
    status = os.statvfs(path)
    free, needed = status.f_bavail * status.f_frsize, max(MIN_FREE_BYTES, num_bytes)
    if free < needed:
        raise RunError(
            f"there is too little disk space for the run in {path}.",
            got=f"{free / 2**20:,.0f} MiB free; checkpoints need {needed / 2**20:,.0f} MiB.",
            hint="--run on another disk.",
        )


def stored_config(path: Path) -> dict[str, Any] | None:
    """Read the config of a run that was started here; None in an empty directory."""
    if not (path / CONFIG).is_file():
        others = sorted(found.name for found in path.iterdir() if found.name != LOCK)
        if others:
            raise RunError(
                f"{path} is not a run and not empty.",
                got=", ".join(others[:3]) + ("." if len(others) <= 3 else f" and {len(others) - 3} more."),
                hint="--run with a new folder.",
            )
        return None
    try:
        content = documents.read_bytes(path / CONFIG, max_bytes=documents.MAX_YAML_BYTES)
        config = documents.parse_yaml(_check_config_sum(path / CONFIG, content).decode("utf-8"))
        if isinstance(config, dict) and not {"request", "asked"} & config.keys():
            raise RunError(f"{path / CONFIG} does not belong to a run.", got="other keys.", hint="another --run.")
        documents.check_plain(config)
        config = _current_names(config) if isinstance(config, dict) else config
        documents.fit_json(json.dumps(config), CONFIG_FILE)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise invalid(path / CONFIG, error) from None
    return config


def _check_config_sum(path: Path, content: bytes) -> bytes:
    """Refuse a config.yaml that was changed; those of earlier versions have no sum in their last line."""
    match = CONFIG_SUM.fullmatch(content)
    if match is not None and hashlib.sha256(match[1]).hexdigest() != match[2].decode():
        raise RunError(
            f"{path} is not the file that was written.",
            got="another SHA-256 sum than in its last line.",
            hint="the original file. If you changed it yourself, delete its last line.",
        )
    return content


def invalid(path: Path, error: BaseException) -> VitrailError:
    """The one error for a file of a run that is not what Vitrail writes."""
    return documents.invalid(path, error, RunError)


def read_document(path: Path, schema: TypeAdapter[Any]) -> Any:
    """Read a JSON file of a run: its sum, its bounds and its schema are checked. FileNotFoundError if there is none."""
    try:
        content = documents.read_bytes(path)
        check_sum(path, RunError, content=content)
        return documents.fit_json(content, schema)
    except FileNotFoundError:
        check_sum(path, RunError)  # it may have existed
        raise
    except (OSError, ValueError) as error:
        raise invalid(path, error) from None


def check_table(path: Path) -> None:
    """Refuse a table of a run that was changed or is larger than memory should hold; a missing one is not listed."""
    if path.is_file() and path.stat().st_size > MAX_TABLE_BYTES:
        raise invalid(path, ValueError(f"more than {MAX_TABLE_BYTES / 2**20:g} MiB"))
    check_sum(path, RunError)


def _current_names(config: dict[str, Any]) -> dict[str, Any]:
    """A config.yaml of version 0.1 under today's names."""
    config = {OLD_NAMES.get(key, key): value for key, value in config.items()}
    if isinstance(config.get("decisions"), dict):
        config["decisions"] = {OLD_NAMES.get(key, key): value for key, value in config["decisions"].items()}
    return config


def discard_unstarted(path: Path) -> bool:
    """Delete what a run that stopped before its first step left: a checkpoint, empty tables, a tokenizer."""
    folders = [path / CHECKPOINTS, *(path / STAGES).glob(f"**/{CHECKPOINTS}")]
    trained = (found for each in folders for found in each.glob("step-*") if found.name.rstrip("0") != "step-")
    if (path / RESULT).is_file() or any(trained):
        return False
    for folder in (CHECKPOINTS, STAGES):
        shutil.rmtree(path / folder, ignore_errors=True)
    for name in (METRICS, TIMING, SUMS, SCALING, "tokenizer.json"):
        (path / name).unlink(missing_ok=True)
    return True


def check_same(
    path: Path, stored: Mapping[str, Any], requested: Mapping[str, Any], *, defaults: Mapping[str, Any]
) -> None:
    """Refuse to resume a run with other settings, so that nothing is overwritten by mistake.

    What a run of an earlier version does not name has its default.
    """
    old, new = flatten({"settings": defaults}) | flatten(stored), flatten(requested)
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if changed:
        changes = (
            f"{key.removeprefix('settings.')}: {new.get(key)!r} requested, {old.get(key)!r} in the run"
            for key in changed[:MAX_DIFFERENCES]
        )
        num_more = len(changed) - MAX_DIFFERENCES
        raise RunError(
            f"{path} holds another run.",
            got="; ".join(changes) + ("." if num_more <= 0 else f"; and {num_more} more."),
            hint="--run with another folder, or the original settings to resume this run.",
        )


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under dotted names, so that a difference can be named precisely."""
    fields: dict[str, Any] = {}
    for key, value in nested.items():
        fields |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return fields


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write config.yaml: the request, everything chosen automatically, and their SHA-256 sum."""
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    write_text(f"{text}# SHA-256 of the lines above: {digest}\n", path / CONFIG, RunError)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file atomically."""
    write_text(_as_json(document), path, RunError)


def _as_json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_summed(path: Path, document: Any) -> None:
    """Write a JSON file that is the only one of its folder with a sum, the sum first: a kill costs nothing."""
    text = _as_json(document)
    write_sums(path.parent, (), RunError, contents={path.name: text.encode("utf-8", "replace")})
    write_text(text, path, RunError)


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write the sums of the run's files, then the result, the last file of a run."""
    text = _as_json(result)
    write_sums(path, SUMMED_FILES, RunError, contents={RESULT: text.encode("utf-8", "replace")})
    write_text(text, path / RESULT, RunError)


def read_result(path: Path) -> dict[str, Any] | None:
    """Read the result of a run; None if it has not finished."""
    if not (path / RESULT).is_file():
        return None
    return read_document(path / RESULT, RESULT_FILE)


class JsonLines:
    """A JSON Lines file that is written unbuffered and can be cut back to the state of a checkpoint."""

    def __init__(self, path: Path, num_bytes: int | None = 0) -> None:
        """Keep the first `num_bytes` of an existing file; None keeps all complete lines."""
        self.path = path
        with self._as_run_errors():
            self.file = path.open("a+b", buffering=0)
            self.cut(self._num_complete_bytes() if num_bytes is None else num_bytes)

    def add(self, **record: Any) -> None:
        """Append a line; values that are not finite become null, because JSON has no NaN."""
        finite = {key: value if math.isfinite(value) else None for key, value in record.items()}
        remaining = memoryview((json.dumps(finite) + "\n").encode())
        with self._as_run_errors():
            while remaining:
                remaining = remaining[self.file.write(remaining) :]

    def sync(self) -> int:
        """Flush the lines to disk and return the length of the file."""
        with self._as_run_errors():
            os.fsync(self.file.fileno())
            return self.file.seek(0, os.SEEK_END)

    def cut(self, num_bytes: int) -> None:
        """Drop the lines written after the checkpoint to resume from."""
        with self._as_run_errors():
            # If somebody shortened the file, truncate() must not pad it with zeros.
            self.file.truncate(min(num_bytes, self.file.seek(0, os.SEEK_END)))

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _num_complete_bytes(self) -> int:
        """The length without a last line that a kill cut short."""
        end = self.file.seek(0, os.SEEK_END)
        begin = self.file.seek(max(0, end - MAX_LINE_BYTES))
        return begin + self.file.read(MAX_LINE_BYTES).rfind(b"\n") + 1

    @contextmanager
    def _as_run_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"{self.path} cannot be written.", got=brief(error), hint=FREE_SPACE) from None
