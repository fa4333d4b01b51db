"""Processes to be killed: one imports everything once, and each run is a fork of it, which takes no time to start."""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE = 300  # seconds until a child hangs
SMALL = (
    *("--model", "vit_mu_patch4_8", "model.drop_path_rate=0.5", "augment.mixup=0.2"),
    *("accumulate=2", "ema=0.9", "precision=float32"),
)  # a run in which everything that could go wrong is on, and a step takes milliseconds
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux: no fork outlives the tests
CALLS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "chmod", "truncate", "open")


class Forge:
    """A process that forks."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        assert self.pipe.recv() == "ready"

    def begin(self, function: Callable[..., int | None], *args: Any, log: Path) -> int:
        """Call a function in a fork, which ends with what it gives as exit code; its number."""
        self.pipe.send((function, args, str(log)))
        return self.pipe.recv()

    def end(self, pid: int) -> int:
        """Wait for a fork; its exit code, or minus the signal that killed it."""
        self.pipe.send(pid)
        if not self.pipe.poll(PATIENCE):
            os.kill(pid, signal.SIGKILL)
            assert self.pipe.recv() == -signal.SIGKILL
            raise TimeoutError(pid)
        return self.pipe.recv()

    def run(self, function: Callable[..., int | None], *args: Any, log: Path) -> int:
        """Call a function in a fork and wait for it."""
        return self.end(self.begin(function, *args, log=log))

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection) -> None:
    import torch._dynamo

    import vitrail.verbs.train
    from vitrail import catalogue
    from vitrail.__main__ import build_app
    from vitrail.data.find import open_data

    # What is imported and read here is there in each fork. Nothing is computed: threads do not outlive a fork.
    torch.set_num_threads(1)
    build_app()
    open_data("digits")
    torch.optim.AdamW(catalogue.create_model("vit_mu_patch4_8").parameters())
    vitrail.verbs.train.parse_settings("auto", [], minutes=None, seed=0, has_weights=False)
    pipe.send("ready")
    while True:
        asked = pipe.recv()
        if isinstance(asked, int):
            pipe.send(os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1]))
            continue
        pid = os.fork()
        if pid == 0:
            _act(*asked)
        pipe.send(pid)


def _act(function: Callable[..., int | None], args: tuple[Any, ...], log: str) -> None:
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        shown = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(shown, 1)
        os.dup2(shown, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        code = function(*args) or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # noqa: BLE001 - whatever it is, the log tells it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def words_of(run: Path, *more: str, data: str | Path = "digits", workers: int = 0) -> list[str]:
    """The words of a small run."""
    return ["train", str(data), "--run", str(run), *SMALL, f"workers={workers}", *more]


def command(words: Sequence[str], *prepare: Callable[[], None]) -> None:
    """The command line, in a process that was prepared for it by what follows."""
    from vitrail.__main__ import main

    for change in prepare:
        change()
    sys.argv = ["vitrail", *words]
    main()


def kill_at_call(number: int) -> None:
    """At the so-manieth call that changes files, kill -9; what is written is then half there."""

    def act(count: int, half: Callable[[], object]) -> None:
        if count == number:
            half()
            os.kill(os.getpid(), signal.SIGKILL)

    _watch(CALLS, act)


def kill_in(module: str, name: str, number: int) -> None:
    """At the so-manieth call of a function of ours, kill -9."""
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
    """From the so-manieth call on that takes room, there is none; what is written is then half there."""

    def act(count: int, half: Callable[[], object]) -> None:
        if count >= number:
            half()
            raise OSError(errno.ENOSPC, "No space left on device")

    _watch(("fsync", "rename", "replace", "mkdir"), act)


def _watch(calls: Sequence[str], act: Callable[[int, Callable[[], object]], None]) -> None:
    """Tell the number of each such call, and of each file that is written, before it is made."""
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
    """No file may grow past a size, as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def signal_self(number: int, *, times: int = 1) -> None:
    """Send a signal to this process."""
    for _ in range(times):
        os.kill(os.getpid(), number)


def wait_for(path: Path) -> None:
    """Wait until there is a file."""
    while not path.exists():
        time.sleep(0.005)


def at_step(step: int, act: Callable[..., object], *args: Any, after: int = 0, **options: Any) -> None:
    """Let something happen just before a step, counted from 0, once it has been begun so often before."""
    from vitrail.training import loop

    learn, times = loop.learn, 0

    def disturbed(job: Any, batch: Any, number: int, stop: Any) -> tuple[float, float, bool]:
        nonlocal times
        times += number == step
        if number == step and times > after:
            act(*args, **options)
        return learn(job, batch, number, stop)

    loop.learn = disturbed


def poison(step: int, times: int) -> None:
    """The losses of a step's pictures, counted from 0, are NaN the first few times that it comes."""
    from vitrail.objective.classify import Classify
    from vitrail.training import loop

    learn, forward, left = loop.learn, Classify.forward, times

    def learn_badly(job: Any, batch: Any, number: int, stop: Any) -> tuple[float, float, bool]:
        nonlocal left
        bad = number == step and left > 0
        left -= bad
        Classify.forward = (lambda *args: forward(*args) * float("nan")) if bad else forward
        return learn(job, batch, number, stop)

    loop.learn = learn_badly


def spoil(step: int) -> None:
    """A weight becomes infinite at a step, the first time that it is taken."""
    from vitrail.training.state import State

    take_step, left = State.take_step, 1

    def spoilt(state: State, loss: float) -> None:
        nonlocal left
        take_step(state, loss)
        if state.now.step == step and left:
            left -= 1
            state.job.model.head.bias.data[0] = float("inf")

    State.take_step = spoilt


def note_steps(file: Path) -> None:
    """Each step that is taken stands in a file."""
    from vitrail.training.state import State

    take_step = State.take_step

    def noted(state: State, loss: float) -> None:
        take_step(state, loss)
        with file.open("a") as notes:
            notes.write(f"{state.now.step}\n")

    State.take_step = noted


def bits(run: Path) -> dict[str, Any]:
    """All that is in a run, by name, without what tells of time: two runs of the same seed have the same."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir():
            found[name] = "folder"
        elif path.name == "timing.jsonl":
            found[name] = all(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        elif path.name in ("README.md", "report.html", "config.yaml", "manifest.json"):
            found[name] = "file"
        elif path.name in ("state.json", "result.json"):
            state = json.loads(path.read_text(encoding="utf-8"))
            found[name] = {key: value for key, value in state.items() if key not in ("seconds", "judged_seconds")}
        elif path.name == "account.json":  # scores to the last digit, without the name of the run and its time
            account = json.loads(path.read_text(encoding="utf-8"))
            found[name] = [value for split, value in account.items() if split not in ("facts", "result")]
        else:
            found[name] = path.read_bytes()
    return found
