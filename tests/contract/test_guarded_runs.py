"""Diverging runs are rolled back or end with a message; finished and other runs are left alone."""

from __future__ import annotations

import re
import shutil
import signal
from functools import partial

import numpy as np
import pytest

from tests.contract import forked
from tests.contract.disturbed import KILLED, SHORT, Bench, at_step, finite, metrics
from tests.contract.forked import bits, words_of
from tests.contract.reading import fingerprint
from tests.forge import command
from vitrail.run import checkpoint


@pytest.mark.parametrize(("lr", "save_every"), [("20.0", 2), ("1.0e+6", 1), ("1.0e+9", 1)])
def test_learning_rate_far_too_high(bench: Bench, lr: str, save_every: int) -> None:
    """Whether or not the rollback helps: everything saved is finite, and so are the metrics."""
    name = f"lr-{lr}-{save_every}"
    more = ("optimizer=adamw", f"lr={lr}", f"save_every={save_every}", "warmup=0", "clip=0")
    code, output = bench.ends(name, more=more)
    folder = bench.place / name / "checkpoints"
    assert code in (0, 2), output
    assert "Rolled back to step" in output
    assert all(finite(path) for path in folder.glob("step-*"))
    assert finite(folder / (folder / "latest").read_text().strip())
    steps = [line["step"] for line in metrics(bench.place / name)]
    assert steps == sorted(set(steps))
    if code == 2:
        assert re.search(r"TrainError: at step \d+ .*, and smaller learning rates did not help\.", output)
        assert re.search(r"Got lr=\S+, a batch with train/\S+", output)
        assert re.search(r"Try lr=\S+ in a new run; \S+/step-\d+ is the last good checkpoint\.", output)
    else:
        assert finite(folder / (folder / "best").read_text().strip())


@pytest.mark.parametrize("step", [6, 8])
def test_weights_that_are_not_finite(bench: Bench, step: int) -> None:
    """They are never saved, with or without an evaluation at that step."""
    code, output = bench.ends(f"spoilt-{step}", partial(forked.spoil, step))
    assert code == 0, output
    assert f"At step {step} the weights or the optimizer state are not finite (files: " in output
    assert f"Rolled back to step {step - 2} with 0.1 of the learning rate." in output
    assert all(finite(path) for path in (bench.place / f"spoilt-{step}" / "checkpoints").glob("step-*"))
    assert len(metrics(bench.place / f"spoilt-{step}")) == len(metrics(bench.place / "calm"))


def test_one_bad_batch(bench: Bench) -> None:
    code, output = bench.ends("poisoned", partial(forked.poison, 6, 1))
    assert code == 0, output
    assert "At step 7 the loss is nan (files: " in output
    assert "Rolled back to step 6 with 0.1 of the learning rate." in output
    assert all(finite(path) for path in (bench.place / "poisoned" / "checkpoints").glob("step-*"))
    found, expected = metrics(bench.place / "poisoned"), metrics(bench.place / "calm")
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    assert found[-1]["lr"] == pytest.approx(expected[-1]["lr"] / 10)
    assert all(value is not None for line in found for value in line.values())


def test_a_batch_that_is_always_bad(bench: Bench) -> None:
    """At the second rollback, the checkpoint is removed as well; after the third the run ends."""
    code, output = bench.ends("always", partial(forked.poison, 6, 99))
    assert code == 2
    assert re.findall(r"Rolled back to step (\d+) with (\S+) of", output) == [
        ("6", "0.1"),
        ("4", "0.01"),
        ("6", "0.001"),
    ]
    assert "TrainError: at step 7 the loss is nan, and smaller learning rates did not help." in output
    assert f"{checkpoint.step_name(6)} is the last good checkpoint." in output
    assert bench.ends("always")[0] == 0  # without the bad batch it resumes
    assert all(finite(path) for path in (bench.place / "always" / "checkpoints").glob("step-*"))


def test_bad_checkpoint_is_removed(bench: Bench) -> None:
    """A step that breaks the weights may have been saved before the next one reveals it."""
    more = ("optimizer=adamw", "lr=20.0", "save_every=1", "warmup=0", "clip=0")
    code, output = bench.ends("broken", more=more)
    assert code == 0, output
    assert re.findall(r"Rolled back to step (\d+) with (\S+) of", output) == [("1", "0.1"), ("0", "0.01")]


def test_killed_after_a_rollback(bench: Bench) -> None:
    """The smaller learning rate survives a kill, and unsaved rollbacks are repeated in the same way."""
    code, output = bench.ends("rolled-back", partial(forked.poison, 6, 3))
    assert (code, output.count("Rolled back to step")) == (0, 3)
    for step, after, left in [(4, 1, 3), (6, 2, 1), (10, 0, 0)]:
        name = f"rolled-back-{step}"
        kill = partial(forked.at_step, step, forked.signal_self, signal.SIGKILL, after=after)
        assert bench.ends(name, partial(forked.poison, 6, 3), kill)[0] == KILLED
        assert bench.ends(name, partial(forked.poison, 6, left))[0] == 0
        assert bits(bench.place / name) == bits(bench.place / "rolled-back")


def test_finished(bench: Bench) -> None:
    """The same command prints the result again, and changes nothing."""
    before = fingerprint(bench.place / "calm")
    code, output = bench.ends("calm")
    assert code == 0
    assert "This run has already finished" in output
    assert re.search(r"accuracy \d+\.\d+ % on 16 validation images", output)
    lock = str(bench.place / "calm" / ".lock")
    assert {**fingerprint(bench.place / "calm"), lock: ()} == {**before, lock: ()}


@pytest.mark.parametrize(
    ("words", "difference"),
    [
        (("seed=5",), "seed: 5 requested, 4 in the run"),
        (("model.depth=3",), "model_settings: "),
        (("--model", "vit_mu_patch2_8"), "model: 'vit_mu_patch2_8' requested, 'vit_mu_patch4_8' in the run"),
        (("lr=0.5", "steps=99"), "lr: 0.5 requested, 0.02 in the run; steps: 99 requested, 12 in the run"),
    ],
)
def test_other_settings(bench: Bench, words: tuple[str, ...], difference: str) -> None:
    before = fingerprint(bench.place / "half")
    code, output = bench.ends("half", more=words)
    assert code == 2
    assert f"{bench.place / 'half'} holds another run." in output
    assert difference in output
    assert "Training" not in output
    lock = str(bench.place / "half" / ".lock")
    assert {**fingerprint(bench.place / "half"), lock: ()} == {**before, lock: ()}


def test_changed_data(bench: Bench) -> None:
    data, log = shutil.copy(bench.data, bench.place / "fewer.npz"), bench.place / "changed.log"
    words = words_of(bench.place / "changed", *SHORT, data=data)
    assert bench.forge.run(command, words, at_step(3, signal.SIGKILL), log=log) == KILLED
    with np.load(bench.data) as arrays:
        np.savez(data, **{name: array[: -3 if "train" in name else None] for name, array in arrays.items()})
    assert bench.forge.run(command, words, log=log) == 2
    assert "holds another run.\n  Got data_fingerprint: '" in log.read_text()
