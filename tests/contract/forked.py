"""Failures of a run: each function prepares a fork of `tests.forge` for one of them."""

from __future__ import annotations

import errno
import importlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

SMALL = (
    *("--model", "vit_mu_patch4_8", "model.drop_path_rate=0.5", "augment.mixup=0.2"),
    *("accumulate=2", "ema=0.9", "precision=float32"),
)  # everything that could go wrong is on, and a step takes milliseconds
TIMINGS = (
    "seconds",
    "evaluated_at",
    "evaluation_seconds",
    "seconds_by_phase",
    "images_per_second",
    "samples_per_second",
)
CALLS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "chmod", "truncate", "open")


def words_of(run: Path, *more: str, data: str | Path = "digits", workers: int = 0) -> list[str]:
    """The command line of a small run."""
    return ["train", str(data), "--run", str(run), *SMALL, f"workers={workers}", *more]


def kill_at_call(number: int) -> None:
    """kill -9 at the given call that changes files, leaving a write half done."""

    def act(count: int, half: Callable[[], object]) -> None:
        if count == number:
            half()
            os.kill(os.getpid(), signal.SIGKILL)

    _watch(CALLS, act)


def kill_in(module: str, name: str, number: int) -> None:
    """kill -9 at the given call of one of our functions."""
    place = importlib.import_module(module)
    original, left = getattr(place, name), number

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **options)

    setattr(place, name, counted)


def fill_disk_at_call(number: int) -> None:
    """From the given call that needs disk space on, there is none; a write is left half done."""

    def act(count: int, half: Callable[[], object]) -> None:
        if count >= number:
            half()
            raise OSError(errno.ENOSPC, "No space left on device")

    _watch(("fsync", "rename", "replace", "mkdir"), act)


def _watch(calls: Sequence[str], act: Callable[[int, Callable[[], object]], None]) -> None:
    """Call `act` with a running number before each such call and each file write."""
    import safetensors.torch

    count = 0

    def watched(original: Callable[..., Any], half: Callable[..., object]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            act(count, partial(half, *args))
            return original(*args, **options)

        return call

    for name in calls:
        setattr(os, name, watched(getattr(os, name), lambda *_: None))
    Path.write_text = watched(Path.write_text, lambda path, text: path.write_bytes(text.encode()[: len(text) // 2]))
    safetensors.torch.serialize_file = watched(
        safetensors.torch.serialize_file, lambda _, path: Path(path).write_bytes(bytes(1000))
    )


def without_room(num_bytes: int) -> None:
    """Limit the size of files, as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def signal_self(number: int, *, times: int = 1) -> None:
    """Send a signal to this process."""
    for _ in range(times):
        os.kill(os.getpid(), number)


def wait_for(path: Path) -> None:
    """Wait until a file exists."""
    while not path.exists():
        time.sleep(0.005)


def at_step(step: int, act: Callable[..., object], *args: Any, after: int = 0, **options: Any) -> None:
    """Call `act` just before a step, counted from 0, once it has started `after` times before."""
    from vitrail.training import loop

    original, times = loop.compute_gradients, 0

    def disturbed(job: Any, batch: Any, number: int, stop: Any) -> tuple[float, float, bool]:
        nonlocal times
        times += number == step
        if number == step and times > after:
            act(*args, **options)
        return original(job, batch, number, stop)

    loop.compute_gradients = disturbed


def poison(step: int, times: int) -> None:
    """Make the losses of a step, counted from 0, NaN the first `times` times."""
    from vitrail.objective.classify import Classify
    from vitrail.training import loop

    original, forward, left = loop.compute_gradients, Classify.forward, times

    def poisoned(job: Any, batch: Any, number: int, stop: Any) -> tuple[float, float, bool]:
        nonlocal left
        bad = number == step and left > 0
        left -= bad
        Classify.forward = (lambda *args: forward(*args) * float("nan")) if bad else forward
        return original(job, batch, number, stop)

    loop.compute_gradients = poisoned


def spoil(step: int) -> None:
    """Make a weight infinite at a step, the first time that it is taken."""
    from vitrail.training.state import State

    take_step, left = State.take_step, 1

    def spoilt(state: State, loss: float) -> None:
        nonlocal left
        take_step(state, loss)
        if state.progress.step == step and left:
            left -= 1
            state.job.learner.model.head.bias.data[0] = float("inf")

    State.take_step = spoilt


def note_steps(file: Path) -> None:
    """Write each step taken to a file; steps take a while, so that who reads it on a busy machine misses few."""
    from vitrail.training.state import State

    take_step = State.take_step

    def noted(state: State, loss: float) -> None:
        time.sleep(0.1)
        take_step(state, loss)
        with file.open("a") as notes:
            notes.write(f"{state.progress.step}\n")

    State.take_step = noted


def bits(run: Path) -> dict[str, Any]:
    """The contents of a run by file name, without timings: equal for two runs with the same seed."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir():
            found[name] = "folder"
        elif path.name == "timing.jsonl":
            found[name] = all(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        elif path.name in ("README.md", "report.html", "config.yaml", "manifest.json", "SHA256SUMS"):
            found[name] = "file"
        elif path.name in ("state.json", "result.json"):
            state = json.loads(path.read_text(encoding="utf-8"))
            found[name] = {key: value for key, value in state.items() if key not in TIMINGS}
        elif path.name == "account.json":  # scores to the last digit, without the name of the run and its time
            account = json.loads(path.read_text(encoding="utf-8"))
            found[name] = [value for split, value in account.items() if split not in ("facts", "result")]
        else:
            found[name] = path.read_bytes()
    return found
