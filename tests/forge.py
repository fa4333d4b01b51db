"""Commands in processes that start at once: a server process imports everything, and each command is a fork of it."""

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

PATIENCE = 300  # seconds, after which a child is considered hung
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux: no fork outlives the tests


class Forge:
    """The server process."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        assert self.pipe.recv() == "ready"

    def start(self, function: Callable[..., int | None], *args: Any, log: Path, out: Path | None = None) -> int:
        """Call a function in a fork, which exits with the code it returns; return the process id.

        Standard error goes to `log`, standard output to `out`, by default the log too.
        """
        self.pipe.send((function, args, str(log), str(out or log)))
        return self.pipe.recv()

    def wait(self, pid: int) -> int:
        """Wait for a fork; return its exit code, or minus the signal that killed it."""
        self.pipe.send(pid)
        if not self.pipe.poll(PATIENCE):
            os.kill(pid, signal.SIGKILL)
            assert self.pipe.recv() == -signal.SIGKILL
            raise TimeoutError(pid)
        return self.pipe.recv()

    def run(self, function: Callable[..., int | None], *args: Any, log: Path, out: Path | None = None) -> int:
        """Call a function in a fork and wait for it."""
        return self.wait(self.start(function, *args, log=log, out=out))

    def run_cli(self, *words: str, cwd: Path, first: str = "") -> subprocess.CompletedProcess[str]:
        """Run `python -W error -m vitrail` with these arguments in a folder, in a fork; code in `first` runs before."""
        strict = partial(warnings.simplefilter, "error")
        with tempfile.TemporaryDirectory() as folder:
            out, log = Path(folder) / "out", Path(folder) / "err"
            code = self.run(command, words, partial(os.chdir, cwd), strict, partial(exec, first, {}), log=log, out=out)
            return subprocess.CompletedProcess(["vitrail", *words], code, out.read_text(), log.read_text())

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def command(words: Sequence[str], *prepare: Callable[[], None]) -> None:
    """Run the command line, after calling `prepare`."""
    from vitrail.__main__ import main

    for change in prepare:
        change()
    sys.argv = ["vitrail", *words]
    main()


def _serve(pipe: Connection) -> None:
    import matplotlib.figure
    import torch._dynamo
    from PIL import Image

    import vitrail.request
    import vitrail.verbs.train
    from vitrail import catalogue, machine, pages, plug
    from vitrail.__main__ import build_app
    from vitrail.data.find import open_data

    # Imports and files read here are shared by all forks. Nothing is computed: threads do not survive a fork.
    torch.set_num_threads(1)
    build_app()
    for package in ("vitrail.verbs", "vitrail.inspection.method", "vitrail.weights.format"):
        for name in plug.entries(package):
            plug.load(package, name)
    pages._templates("vitrail.report").get_template("run.html")
    Image.init()
    matplotlib.figure.Figure()
    torch.manual_seed(0)  # reads the source of its caller for tracebacks, which takes time
    open_data("digits")
    torch.optim.AdamW(catalogue.create_model("vit_mu_patch4_8").parameters())
    vitrail.request.parse_settings("auto", [], minutes=None, seed=0, has_weights=False)
    machine.choices()  # measured once, so that all forks choose alike, however busy the machine is
    pipe.send("ready")
    while True:
        message = pipe.recv()
        if isinstance(message, int):
            pipe.send(os.waitstatus_to_exitcode(os.waitpid(message, 0)[1]))
            continue
        pid = os.fork()
        if pid == 0:
            _act(*message)
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
    except BaseException:  # noqa: BLE001 - whatever it is, the log has it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
