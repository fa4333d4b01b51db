"""Runs that are disturbed, and the undisturbed run that they must match."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from tests.contract import forked
from tests.contract.forked import bits, words_of
from tests.forge import PATIENCE, Forge, command
from vitrail.run import checkpoint

SHORT = ("steps=12", "batch_size=16", "eval_every=4", "save_every=2", "seed=4")
STOPPED = 7  # the step at which `half` was killed; 4 was evaluated, 6 saved
KILLED = -signal.SIGKILL


def at_step(step: int, number: signal.Signals, **options: int) -> Callable[[], None]:
    """A signal just before a step."""
    return partial(forked.at_step, step, forked.signal_self, number, **options)


class Bench:
    """Runs the command line: `calm` was never disturbed, `half` was killed midway."""

    def __init__(self, place: Path, forge: Forge) -> None:
        self.place, self.forge = place, forge
        self.num, self.data = 0, place / "digits.npz"
        digits = load_digits()
        images = (digits.images * 15).astype(np.uint8)
        parts = {"train": slice(None, 160), "test": slice(160, 200)}
        arrays = {f"x_{name}": images[rows] for name, rows in parts.items()}
        np.savez(self.data, **arrays, **{f"y_{name}": digits.target[rows] for name, rows in parts.items()})
        assert self.ends("calm")[0] == 0
        self.expected = bits(place / "calm")
        assert self.ends("half", at_step(STOPPED, signal.SIGKILL))[0] == KILLED

    def ends(self, name: str, *prepare: Callable[[], None], more: Sequence[str] = ()) -> tuple[int, str]:
        """Run to the end; return the exit code and the output."""
        self.num += 1
        log = self.place / f"{self.num}.log"
        code = self.forge.run(command, self.words(name, *more), *prepare, log=log)
        return code, log.read_text()

    def words(self, name: str, *more: str, workers: int = 0) -> list[str]:
        """The command line of a run."""
        return words_of(self.place / name, *SHORT, *more, data=self.data, workers=workers)

    def half(self, name: str) -> Path:
        """Create a run of this name that was killed midway."""
        return shutil.copytree(self.place / "half", self.place / name)

    def same(self, name: str) -> bool:
        """Run the same command again; return whether the run is as if nothing had happened."""
        code, output = self.ends(name)
        assert code == 0, output
        return bits(self.place / name) == self.expected


def finite(path: Path) -> bool:
    """Whether a checkpoint is intact and all its values are finite."""
    found = checkpoint.load(path.parent, path.name)
    return found is not None and all(checkpoint.all_finite(part) for part in found.parts.values())


def wait_until(claim: Callable[[], bool]) -> None:
    """Wait for another process."""
    deadline = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
