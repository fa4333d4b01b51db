"""Is anything ever lost? Kill runs at random moments, and at every call that changes a file, and resume them.

    python benchmarks/kill.py > benchmarks/kill.json

Each must end with the same bits as an undisturbed run (weights, EMA, optimizer, metrics) and the same files. The second
part needs strace. Takes ten minutes; writes only to a temporary folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.contract.forked import bits, note_steps, wait_for, words_of
from tests.forge import Forge, command
from vitrail.benchmark.compare import hardware

NUM_KILLS, SEED = 30, 0
MAX_STEPS = 12  # before a run is killed
MAX_PAUSE = 0.1  # seconds after that step
SAVE_EVERY = 5
LONG = ("steps=300", "batch_size=32", "eval_every=10", f"save_every={SAVE_EVERY}")
SHORT = ("steps=6", "batch_size=16", "eval_every=3", "save_every=2")
CALLS = {
    *("write", "writev", "pwrite64", "fsync", "fdatasync", "ftruncate", "openat", "mkdir", "mkdirat"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "chmod", "fchmod"),
}


def at_random(forge: Forge, place: Path, workers: int) -> dict[str, Any]:
    """Compare a run that is killed at random moments with an undisturbed one."""
    calm, killed, notes = place / "calm", place / "killed", place / "notes"
    assert forge.run(command, words_of(calm, *LONG, workers=workers), log=place / "log") == 0
    rng = random.Random(SEED + workers)
    num_kills, last, repeated, code = 0, 0, 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        notes.write_text("")
        words = words_of(killed, *LONG, workers=workers)
        pid = forge.start(command, words, partial(note_steps, notes), log=place / "log")
        if num_kills < NUM_KILLS:
            num_steps = rng.randint(0, MAX_STEPS)
            while len(notes.read_text().split()) < num_steps:
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, MAX_PAUSE))
            os.kill(pid, signal.SIGKILL)
        code = forge.wait(pid)
        num_kills += code == -signal.SIGKILL
        steps = [int(line) for line in notes.read_text().split()]
        if steps:
            repeated, last = max(repeated, last - steps[0] + 1), steps[-1]
    assert code == 0, (place / "log").read_text()
    same = bits(killed) == bits(calm)
    return {
        "workers": workers,
        "kills": num_kills,
        "steps": last,
        "save_every": SAVE_EVERY,
        "most_steps_repeated": repeated,
        "same_bits_and_files": same,
    }


def at_every_call(forge: Forge, place: Path) -> dict[str, Any]:
    """Kill a run at the first call that changes files, another at the second, and so on."""
    calm, killed = place / "calm", place / "killed"
    assert forge.run(command, words_of(calm, *SHORT), log=place / "log") == 0
    expected = bits(calm)
    kills, failures = {}, []
    for call in sorted(CALLS):
        number = 1
        while killed_by_strace(forge, place, call, number, words_of(killed, *SHORT)):
            code = forge.run(command, words_of(killed, *SHORT), log=place / "log")
            if code or bits(killed) != expected:
                failures.append(f"{call} {number}")
            shutil.rmtree(killed)
            number += 1
        if bits(killed) != expected:
            failures.append(f"{call}, undisturbed")
        shutil.rmtree(killed)
        kills[call] = number - 1
        print(call, number - 1, failures, file=sys.stderr, flush=True)
    return {"kills": sum(kills.values()), "by_call": kills, "other_bits_or_files": failures}


def killed_by_strace(forge: Forge, place: Path, call: str, number: int, words: list[str]) -> bool:
    """Kill a run at the given call; return False if it ended before."""
    signal_file = place / "continue"
    signal_file.unlink(missing_ok=True)
    pid = forge.start(command, words, partial(wait_for, signal_file), log=place / "log")
    inject = f"inject={call}:signal=KILL:when={number}"
    strace = ["strace", "-f", "-qq", "-e", f"trace={call}", "-e", inject, "-o", os.devnull, "-p", str(pid)]
    with subprocess.Popen(strace) as tracer:  # noqa: S603 - our own command
        while "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text():
            time.sleep(0.002)
        signal_file.touch()
        code = forge.wait(pid)
        tracer.wait()
    assert code in (0, -signal.SIGKILL), (place / "log").read_text()
    return code != 0


def main() -> None:
    """Run both parts and print one JSON document."""
    forge = Forge()
    document: dict[str, Any] = {"hardware": hardware(), "at_random": []}
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("0", at_random), ("2", at_random)):
            place = Path(folder) / name
            place.mkdir()
            document["at_random"].append(part(forge, place, int(name)))
            print(document["at_random"][-1], file=sys.stderr, flush=True)
        if shutil.which("strace"):
            place = Path(folder) / "every"
            place.mkdir()
            document["at_every_call"] = at_every_call(forge, place)
    forge.stop()
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
