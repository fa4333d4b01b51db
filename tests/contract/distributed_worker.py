"""Run by torchrun for test_distributed.py: the command line in each process, job by job, with failures.

The plan is a JSON file: for each attempt (torchrun's restarts) a list of jobs, each with the words of the command line
and, optionally, an accident at a step of a rank. Each process writes its notes to its own file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import vitrail.__main__ as command_line
from vitrail.errors import DataError
from vitrail.training import loop

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
TOUCHING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
PATIENCE = 20.0
compute_gradients = loop.compute_gradients


class Watch:
    """Records the losses of a job, and the files that the process wrote in the run."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.accident = job.get("accident", {})
        self.run = str(job["run"])
        self.losses: list[float] = []
        self.touched: set[str] = set()

    def compute_gradients(self, job: Any, batch: Any, step: int, stop: Any) -> Any:
        if self.accident.get("step") == step and self.accident["rank"] == RANK:
            self.happen(stop)
        result = compute_gradients(job, batch, step, stop)
        self.losses.append(result[0])
        return result

    def happen(self, stop: Any) -> None:
        match self.accident["kind"]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "interrupt":
                signal.raise_signal(signal.SIGINT)
            case "bad image":
                raise DataError("cat.jpg cannot be read.", got="an accident.", hint="another image.")
            case "end torchrun":
                os.kill(os.getppid(), signal.SIGTERM)
                until = time.monotonic() + PATIENCE
                while not stop.requested and time.monotonic() < until:
                    time.sleep(0.01)

    def hear(self, event: str, details: tuple[Any, ...]) -> None:
        """Python's audit hook: every file opened for writing, every folder created, moved or removed."""
        if event in TOUCHING or (event == "open" and isinstance(details[2], int) and details[2] & WRITES):
            path = str(details[0])
            if path.startswith(self.run):
                self.touched.add(path.removeprefix(self.run))


def main() -> None:
    plan_file = Path(sys.argv[1])
    seen: dict[str, Any] = {}
    code: Any = 0
    watch: Watch | None = None
    sys.addaudithook(lambda event, details: watch.hear(event, details) if watch is not None else None)
    for job in json.loads(plan_file.read_text())[ATTEMPT]:
        watch = Watch(job)
        loop.compute_gradients = watch.compute_gradients
        run = job["run"] if RANK == 0 else job.get("other_run", job["run"])
        sys.argv = ["vitrail", *job["words"], "--run", run]
        try:
            command_line.main()
        except SystemExit as end:
            code = end.code
        seen[job["name"]] = {"losses": watch.losses, "touched": sorted(watch.touched), "code": code}
        part = plan_file.with_suffix(f".part{RANK}")
        part.write_text(json.dumps(seen))
        part.replace(plan_file.with_suffix(f".{ATTEMPT}.{RANK}"))  # torchrun may end this process at any time
    sys.exit(code)


if __name__ == "__main__":
    main()
