"""Read a source to its end: here, or in a child process whose crash or hang is reported and survived."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import stat
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vitrail.data.find import open_data
from vitrail.data.reader import Reader
from vitrail.data.table import Source
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, printable

PATIENCE = 5  # seconds until a child counts as hanging
READER = Reader(Preprocess(size=(8, 6)))
Refuse = Callable[[str | Path, str], DataError]


def read(word: str | Path) -> Source:
    """Open a source and read every image."""
    source = open_data(word)
    for item in source:
        assert printable(item.name).isprintable()
        assert READER.read(item).shape == (8, 6, 3)
    return source


def fingerprint(root: Path) -> dict[str, tuple[int, int, str]]:
    """Everything below a folder: types and permissions, times, contents."""
    found = {}
    for folder, folders, files in os.walk(root):
        for path in [Path(folder) / name for name in (*folders, *files)]:
            state = path.lstat()
            plain = stat.S_ISREG(state.st_mode) and state.st_size < 2**24 and os.access(path, os.R_OK)
            content = hashlib.sha256(path.read_bytes()).hexdigest() if plain else ""
            found[str(path)] = (state.st_mode, state.st_mtime_ns, content)
    return found


class Child:
    """A process that reads the sources it is sent."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None

    def ask(self, word: str | Path) -> str:
        """`read`, `refused`, `crash`, `hang`, or a traceback."""
        if self.process is None:
            self.start()
        self.pipe.send(str(word))
        try:
            if self.pipe.poll(PATIENCE):
                return self.pipe.recv()
            answer = "hang"
        except EOFError:
            answer = "crash"
        self.stop()
        return answer

    def start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        assert self.pipe.recv() == "ready"

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None


def _serve(pipe: Connection) -> None:
    warnings.simplefilter("error")
    pipe.send("ready")
    while True:
        word = pipe.recv()
        try:
            read(word)
            pipe.send("read")
        except DataError:
            pipe.send("refused")
        except Exception:  # noqa: BLE001 - whatever it is, the test shows it
            pipe.send(traceback.format_exc())
