"""Runs of two processes, and what to compare of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT
from tests.forge import PATIENCE

START = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--", "vitrail")


def run_two_ranks(words: Sequence[str], cwd: Path) -> None:
    """Run a command of Vitrail in two processes, as torchrun does."""
    done = subprocess.run(
        [sys.executable, *START, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def losses(run: Path) -> list[float]:
    """All losses of a run, in training and in evaluation."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [value for line in lines for key, value in line.items() if "loss" in key]
