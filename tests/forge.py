"""Commands in processes that take no time to start: one process imports everything once, and each run is its fork."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE = 300  # seconds until a child hangs
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux: no fork outlives the tests


class Forge:
    """A process that forks."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        assert self.pipe.recv() == "ready"

    def begin(self, function: Callable[..., int | None], *args: Any, log: Path, out: Path | None = None) -> int:
        """Call a function in a fork, which ends with what it gives as exit code; its number.

        What it says goes to the log; what it prints on standard output to `out`, if that is told.
        """
        self.pipe.send((function, args, str(log), str(out or log)))
        return self.pipe.recv()

    def end(self, pid: int) -> int:
        """Wait for a fork; its exit code, or minus the signal that killed it."""
        self.pipe.send(pid)
        if not self.pipe.poll(PATIENCE):
            os.kill(pid, signal.SIGKILL)
            assert self.pipe.recv() == -signal.SIGKILL
            raise TimeoutError(pid)
        return self.pipe.recv()

    def run(self, function: Callable[..., int | None], *args: Any, log: Path, out: Path | None = None) -> int:
        """Call a function in a fork and wait for it."""
        return self.end(self.begin(function, *args, log=log, out=out))

    def told(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """What `python -W error -m vitrail` tells of these words in a folder, in a fork of its own."""
        strict = partial(warnings.simplefilter, "error")
        with tempfile.TemporaryDirectory() as room:
            out, log = Path(room) / "out", Path(room) / "err"
            code = self.run(command, words, partial(os.chdir, cwd), strict, log=log, out=out)
            return subprocess.CompletedProcess(["vitrail", *words], code, out.read_text(), log.read_text())

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def command(words: Sequence[str], *prepare: Callable[[], None]) -> None:
    """The command line, in a process that was prepared for it by what follows."""
    from vitrail.__main__ import main

    for change in prepare:
        change()
    sys.argv = ["vitrail", *words]
    main()


def _serve(pipe: Connection) -> None:
    import matplotlib.figure
    import torch._dynamo
    from PIL import Image

    import vitrail.verbs.train
    from vitrail import catalogue, pages, plug
    from vitrail.__main__ import build_app
    from vitrail.data.find import open_data

    # What is imported and read here is there in each fork. Nothing is computed: threads do not outlive a fork.
    torch.set_num_threads(1)
    build_app()
    for package in ("vitrail.verbs", "vitrail.inspection.method", "vitrail.weights.format"):
        for name in plug.entries(package):
            plug.load(package, name)
    pages._templates("vitrail.report").get_template("run.html")
    Image.init()
    matplotlib.figure.Figure()
    torch.manual_seed(0)  # reads the source of whatever calls it, for tracebacks that nobody asks for
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


def _act(function: Callable[..., int | None], args: tuple[Any, ...], log: str, out: str) -> None:
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        for place, handle in ((out, 1), (log, 2)):
            shown = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(shown, handle)
            os.close(shown)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1, errors="backslashreplace")
        code = function(*args) or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # noqa: BLE001 - whatever it is, the log tells it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
