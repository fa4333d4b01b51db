"""Nothing is ever lost: a run that was killed, filled the disk or was damaged resumes, and ends as if undisturbed."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.contract import forked
from tests.contract.disturbed import KILLED, Bench, at_step, finite, metrics, wait_until
from tests.contract.forked import bits
from tests.forge import PATIENCE, command
from vitrail.run import checkpoint

DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": lambda path: flip(path / "model.safetensors"),
    "truncated": lambda path: (path / "state.json").write_text('{"step"'),
    "unlisted": lambda path: (path / "manifest.json").unlink(),
    "emptied": lambda path: (shutil.rmtree(path), path.mkdir()),
}


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_random(bench: Bench, workers: int) -> None:
    run, notes = bench.place / f"random-{workers}", bench.place / f"notes-{workers}"
    words, rng = bench.words(run.name, workers=workers), random.Random(workers)
    last = 0
    for kill in range(4):
        notes.write_text("")
        pid = bench.forge.start(command, words, partial(forked.note_steps, notes), log=bench.place / "log")
        wait_until(lambda: len(notes.read_text().split()) > kill % 3)  # noqa: B023 - called at once
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
        assert bench.forge.wait(pid) == KILLED
        steps = [int(line) for line in notes.read_text().split()]
        assert last - steps[0] + 1 <= 2  # only unsaved steps are repeated
        last = steps[-1]
    assert bench.forge.run(command, words, log=bench.place / "log") == 0
    found = bits(run)
    assert (run / "config.yaml").read_text().count(f"workers: {workers}") == 1
    assert found == bench.expected


@pytest.mark.parametrize("number", range(30, 430, 100))
def test_killed_at_a_call(bench: Bench, number: int) -> None:
    code, output = bench.ends(f"call-{number}", partial(forked.kill_at_call, number))
    assert code == (KILLED if output.count("steps in") == 0 else 0)
    assert bench.same(f"call-{number}")


@pytest.mark.parametrize(("name", "number"), [("checkpoint.point", 4), ("artefact.write_json", 1)])
def test_killed_between(bench: Bench, name: str, number: int) -> None:
    """Before the first evaluation is named the best, and before the model is described."""
    module, _, function = f"vitrail.run.{name}".rpartition(".")
    code, output = bench.ends(name, partial(forked.kill_in, module, function, number))
    assert code == KILLED, output
    assert bench.same(name)


def test_killed_before_older_checkpoints_are_removed(bench: Bench) -> None:
    """Nothing is saved after the last checkpoint, so older ones are removed on resuming."""
    more = ("seed=1",)
    assert bench.ends("older", more=more)[0] == 0
    assert (bench.place / "older" / "checkpoints" / "best").read_text().strip() == checkpoint.step_name(4), (
        "another seed"
    )
    kill = partial(forked.kill_in, "vitrail.run.checkpoint", "prune", 7)
    assert bench.ends("older-killed", kill, more=more)[0] == KILLED
    assert (bench.place / "older-killed" / "checkpoints" / checkpoint.step_name(8)).is_dir()
    assert bench.ends("older-killed", more=more)[0] == 0
    assert bits(bench.place / "older-killed") == bits(bench.place / "older")


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint(bench: Bench, damage: str) -> None:
    run = bench.half(damage)
    DAMAGES[damage](run / "checkpoints" / checkpoint.step_name(6))
    code, output = bench.ends(damage)
    assert code == 0, output
    assert f"{checkpoint.step_name(6)} is damaged and skipped" in output
    assert "Resuming from step 4." in output
    assert bits(run) == bench.expected


def test_damaged_checkpoint_that_was_the_best(bench: Bench) -> None:
    """The previous best is still there, and is the best again until it is beaten."""
    assert bench.ends("best-newest", at_step(9, signal.SIGKILL))[0] == KILLED
    flip(bench.place / "best-newest" / "checkpoints" / checkpoint.step_name(8) / "model.safetensors")
    code, output = bench.ends("best-newest", at_step(7, signal.SIGTERM))
    assert (code, "The best checkpoint" in output) == (130, False)
    assert f"{checkpoint.step_name(8)} is damaged and skipped" in output
    assert bench.same("best-newest")


def test_all_checkpoints_damaged(bench: Bench) -> None:
    run = bench.half("all-damaged")
    for damage, path in zip(DAMAGES, (run / "checkpoints").glob("step-*"), strict=False):
        DAMAGES[damage](path)
    assert bench.same(run.name)


@pytest.mark.parametrize("content", [None, b"step-0000\xff", b"step-000000999\n"])
def test_damaged_pointers(bench: Bench, content: bytes | None) -> None:
    run = bench.half(f"pointers-{0 if content is None else len(content)}")
    for which in ("latest", "best"):
        (run / "checkpoints" / which).unlink()
        if content is not None:
            (run / "checkpoints" / which).write_bytes(content)
    assert bench.same(run.name)


def test_damaged_best(bench: Bench) -> None:
    run = bench.half("best-damaged")
    flip(run / "checkpoints" / checkpoint.step_name(4) / "ema.safetensors")
    code, output = bench.ends(run.name)
    assert code == 0, output
    assert f"The best checkpoint, {checkpoint.step_name(4)}, is damaged" in output
    assert metrics(run) == metrics(bench.place / "calm")
    assert finite(run / "checkpoints" / (run / "checkpoints" / "best").read_text().strip())


def test_damaged_best_at_the_end(bench: Bench) -> None:
    """Nothing is left to train, and there is no best score: the end is evaluated again."""
    run = bench.place / "best-at-end"
    more = ("small_until=0.0",)
    assert bench.ends(run.name, more=more)[0] == 0
    before = metrics(run)
    (run / "result.json").unlink()
    best = run / "checkpoints" / (run / "checkpoints" / "best").read_text().strip()
    assert best.name != checkpoint.step_name(12), "choose a run whose last evaluation is not its best"
    flip(best / "ema.safetensors")
    code, output = bench.ends(run.name, more=more)
    assert code == 0, output
    assert (run / "checkpoints" / "best").read_text().strip() == checkpoint.step_name(12)
    assert metrics(run) == before


def test_metrics_removed(bench: Bench) -> None:
    run = bench.half("no-metrics")
    (run / "metrics.jsonl").unlink()
    assert bench.ends(run.name)[0] == 0
    assert metrics(run) == metrics(bench.place / "calm")[1:]  # earlier lines are gone, and nothing is invented


@pytest.mark.parametrize("number", range(1, 121, 40))
def test_disk_full(bench: Bench, number: int) -> None:
    """Whenever the disk fills up: one message, and with free space the run resumes."""
    run = bench.half(f"full-{number}")
    code, output = bench.ends(run.name, partial(forked.fill_disk_at_call, number))
    assert (code, output.count("Error: "), "Traceback" in output) == (2, 1, False), output
    assert re.search(r"RunError: .* cannot be written", output)
    assert "  Got [Errno 28] No space left on device." in output
    assert "  Try freeing disk space" in output
    assert finite(max((run / "checkpoints").glob("step-*")))
    assert bench.same(run.name)


def test_file_too_large(bench: Bench) -> None:
    """The operating system refuses to write more."""
    code, output = bench.ends("large", partial(forked.without_room, 60_000))
    assert (code, output.count("RunError: "), "Traceback" in output) == (2, 1, False), output
    assert re.search(r"RunError: the checkpoint step-\d+ cannot be written to .*\n  Got .*File too large", output)
    assert bench.same("large")


@pytest.mark.parametrize("place", ["file/run", "/proc/run"])
def test_place_that_cannot_be_written(bench: Bench, place: str) -> None:
    (bench.place / "file").touch()
    code, output = bench.ends(place)
    assert code == 2
    assert "cannot be written" in output
    assert "Try --run with a writable folder." in output
    assert "Training" not in output


@pytest.mark.parametrize(
    ("number", "step"), [(signal.SIGINT, 4), (signal.SIGINT, 7), (signal.SIGTERM, 1), (signal.SIGTERM, 11)]
)
def test_interrupted(bench: Bench, number: signal.Signals, step: int) -> None:
    """Also at a step that is evaluated or saved anyway, and at the last."""
    name = f"{number.name}-{step}"
    code, output = bench.ends(name, at_step(step, number))
    assert code == 130, output
    assert f"Saved at step {step + 1:,} in {bench.place / name}. The same command resumes from there." in output
    assert finite(bench.place / name / "checkpoints" / checkpoint.step_name(step + 1))
    code, output = bench.ends(name)
    assert (code, f"Resuming from step {step + 1}." in output) == (0, True)
    assert bits(bench.place / name) == bench.expected


def test_interrupted_twice(bench: Bench) -> None:
    """The second Ctrl-C does not wait."""
    code, output = bench.ends("twice", at_step(5, signal.SIGINT, times=2))
    assert code == 130
    assert "Saved" not in output
    assert bench.same("twice")


def test_terminated_command(bench: Bench) -> None:
    """The same with the real command in a process of its own."""
    run = bench.place / "command"
    words = [sys.executable, "-m", "vitrail", *bench.words("command", "steps=999")]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    wait_until((run / "checkpoints" / checkpoint.step_name(2)).is_dir)
    process.terminate()
    output = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    step = re.search(r"Saved at step (\d+) in \S+/command\. The same command resumes from there\.", output)
    assert step is not None
    assert finite(run / "checkpoints" / checkpoint.step_name(int(step[1])))


def test_second_process(bench: Bench) -> None:
    signal_file = bench.place / "continue"
    words, wait = bench.words("shared"), partial(forked.at_step, 5, forked.wait_for, signal_file)
    pid = bench.forge.start(command, words, wait, log=bench.place / "log")
    wait_until((bench.place / "shared" / "checkpoints" / checkpoint.step_name(4)).is_dir)
    code, output = bench.ends("shared")
    assert code == 2
    assert "shared is in use by another process." in output
    signal_file.touch()
    assert bench.forge.wait(pid) == 0
    assert bits(bench.place / "shared") == bench.expected
