"""Training with two processes (gloo, CPU): the same numbers as with one, failures and restarts, and sharded models.

Starting processes takes seconds, so two launches serve all tests: in the first, each attempt fails in its own way; the
second resumes from there, and has the runs to compare with.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from torch.distributed.run import parse_args

from tests.conftest import ROOT
from vitrail.errors import RunError, SpecError
from vitrail.run import checkpoint, directory
from vitrail.training import interrupt, loop, shard, task
from vitrail.training.world import World
from vitrail.verbs.train import train

WORKER = Path(__file__).with_name("distributed_worker.py")
MODEL = ["--model", "vit_mu_patch4_8"]
# 65 images are held out: of the last batch, one process gets a single image, and the other none.
NUM_TRAIN, NUM_VAL, NUM_TEST = 520, 65, 131
SIZES = ["model.depth=2", "precision=float32", "batch_size=64", "accumulate=2", "val_share=0.125", "workers=0"]
CHANCE = ["augment.mixup=0.4", "augment.jitter=0.3", "augment.scale=[0.5,1.0]"]
ADAMW = [*SIZES, *CHANCE, "steps=12", "eval_every=4", "optimizer=adamw", "lr=0.003", "ema=0.9"]
MUON = [*SIZES, "steps=3", "optimizer=muon", "lr=0.02"]
DATA = "patterns.npz"
PATIENCE = 150.0  # seconds; a launch takes ten to twenty, and one that hangs is a failure
MESSAGES = {
    "in use": "is in use by another process.",
    "killed": "another process of this run has exited.",
    "bad image": "cat.jpg cannot be read.",
    "not shared": "with --shard, all machines write to the run directory.",
}


class LaunchResult(NamedTuple):
    """The exit code and output of torchrun, and the notes of each process in each attempt."""

    code: int
    out: str
    err: str
    notes: dict[str, dict[str, Any]]


def launch(folder: Path, attempts: list[list[dict[str, Any]]]) -> LaunchResult:
    folder.mkdir()
    plan = folder / "plan.json"
    plan.write_text(json.dumps(attempts))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--monitor-interval", "0.05", "--max-restarts", str(len(attempts) - 1), str(WORKER), str(plan)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=folder
    ) as torchrun:
        try:
            out, err = torchrun.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            torchrun.terminate()  # it ends its processes, which a kill would leave behind
            raise
    notes = {path.name.removeprefix("plan."): json.loads(path.read_text()) for path in folder.glob("plan.?.?")}
    return LaunchResult(torchrun.returncode, out, err, notes)


def job(root: Path, name: str, settings: list[str], *flags: str, **more: Any) -> dict[str, Any]:
    run, data = root / "runs" / name, root / DATA
    return {"name": name, "run": str(run), "words": ["train", str(data), *MODEL, *settings, *flags], **more}


def write_data(path: Path) -> None:
    """Small grey images of four classes: a pattern each, and noise. (The digits would import scikit-learn.)"""
    random = np.random.default_rng(0)
    patterns = random.integers(40, 216, (4, 8, 8))
    arrays = {}
    for split, num in (("train", NUM_TRAIN), ("test", NUM_TEST)):
        labels = np.arange(num) % 4
        pixels = patterns[labels] + random.normal(0, 60, (num, 8, 8))
        arrays |= {f"x_{split}": np.clip(pixels, 0, 255).astype(np.uint8), f"y_{split}": labels}
    np.savez(path, **arrays)


def train_alone(data: Path, run: Path, *, stop_at: int | None = None) -> list[float]:
    """The losses of a single-process run, interrupted before step `stop_at`, if any."""
    losses: list[float] = []
    compute_gradients = loop.compute_gradients

    def watched(*args: Any) -> Any:
        if args[2] == stop_at:
            args[3].requested = True
        result = compute_gradients(*args)
        losses.append(result[0])
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "compute_gradients", watched)
        if stop_at is None:
            train(data, model=MODEL[1], run=run, settings=ADAMW)
        else:
            with pytest.raises(interrupt.Interrupted, match=f"step {stop_at + 1} "):
                train(data, model=MODEL[1], run=run, settings=ADAMW)
    return losses


def launch_all(root: Path) -> None:
    """Run both launches and store their results for all tests."""
    runs = root / "runs"
    runs.mkdir(parents=True)
    write_data(root / DATA)
    train_alone(root / DATA, runs / "alone-then-cut", stop_at=6)
    killed = job(root, "accidents", ADAMW, accident={"kind": "kill", "rank": 1, "step": 6})
    ended = job(root, "accidents", ADAMW, accident={"kind": "end torchrun", "rank": 0, "step": 9})
    with directory.claim(runs / "in-use"):
        wrong = launch(root / "wrong", [[job(root, "in-use", ADAMW)], [killed], [ended]])
    right = launch(
        root / "right",
        [
            [
                job(root, "accidents", ADAMW, other_run=str(runs / "nowhere")),
                job(root, "copies", ADAMW),
                job(root, "parts", ADAMW, "--shard"),
                job(root, "alone-then-cut", ADAMW, "--shard"),
                job(root, "cut-then-alone", ADAMW, "--shard", accident={"kind": "interrupt", "rank": 1, "step": 6}),
                job(root, "copies-muon", MUON),
                job(root, "parts-muon", MUON, "--shard"),
                job(root, "not-shared", MUON, "--shard", other_run=str(runs / "elsewhere")),
                job(root, "bad-image", MUON, accident={"kind": "bad image", "rank": 1, "step": 2}),
            ]
        ],
    )
    (root / "seen.json").write_text(json.dumps({"wrong": wrong, "right": right}))


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both launches, which the first pytest worker runs for all."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = base / "distributed"
    with FileLock(base / "distributed.lock"):
        if not (folder / "seen.json").exists():
            launch_all(folder)
    return folder


@pytest.fixture(scope="session")
def wrong(root: Path) -> LaunchResult:
    return LaunchResult(*json.loads((root / "seen.json").read_text())["wrong"])


@pytest.fixture(scope="session")
def right(root: Path) -> LaunchResult:
    return LaunchResult(*json.loads((root / "seen.json").read_text())["right"])


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / directory.METRICS).read_text().splitlines()]


def assert_near(one: list[dict[str, float]], other: list[dict[str, float]], tolerance: float) -> None:
    assert [line.keys() for line in one] == [line.keys() for line in other]
    for mine, theirs in zip(one, other, strict=True):
        assert mine == pytest.approx(theirs, abs=tolerance, rel=0), mine["step"]


def test_two_processes_see_the_losses_and_scores_of_one(root: Path, right: LaunchResult, tmp_path: Path) -> None:
    losses = train_alone(root / DATA, tmp_path / "alone")
    copies = right.notes["0.0"]["copies"]["losses"]
    assert copies == right.notes["0.1"]["copies"]["losses"]
    assert copies == pytest.approx(losses, abs=1e-6, rel=0)
    assert len(set(losses)) == 12
    assert_near(metrics(root / "runs" / "copies"), metrics(tmp_path / "alone"), 1e-6)
    results = [directory.read_result(run) for run in (root / "runs" / "copies", tmp_path / "alone")]
    assert results[0]["val"] == results[1]["val"]
    assert results[0]["val"]["n"] == NUM_VAL
    assert results[0]["test"] == results[1]["test"]
    assert results[0]["test"]["n"] == NUM_TEST


def test_only_rank_zero_writes_and_prints(root: Path, right: LaunchResult) -> None:
    assert right.notes["0.0"]["copies"]["touched"]
    assert right.notes["0.1"]["copies"]["touched"] == []
    # Nor does it read there: another machine, without the run, can resume it.
    assert len(right.notes["0.1"]["accidents"]["losses"]) == 2
    assert not (root / "runs" / "nowhere").exists()
    assert right.out.count("Report: ") == 6
    assert right.out.count(str(root / "runs" / "copies")) == 4  # the model and its report, with and without muon
    assert right.err.count("Resuming from step 7.") == 1


def test_what_goes_wrong_in_one_process_ends_all_with_one_message(wrong: LaunchResult, right: LaunchResult) -> None:
    assert wrong.code != 0
    assert right.code != 0
    for kind, result in (("in use", wrong), ("not shared", right), ("bad image", right)):
        assert result.err.count(MESSAGES[kind]) == 1, kind
    # torchrun reports the kill; the other process may do so too, before torchrun ends it.
    assert "exitcode: -9" in wrong.err
    assert wrong.err.count(MESSAGES["killed"]) <= 1
    assert "bug in Vitrail" not in wrong.err + right.err
    assert "Warning" not in wrong.err + right.err
    assert wrong.notes["0.0"]["in-use"]["code"] == 2
    assert right.notes["0.1"]["bad-image"]["code"] == 2


def test_the_end_of_torchrun_saves(wrong: LaunchResult) -> None:
    assert "Resuming from step 4." in wrong.err  # the restart after the kill at step 6
    assert wrong.notes["2.0"]["accidents"]["code"] in (1, 130)
    assert wrong.err.count("Saved at step 10") == 1


def test_a_killed_and_restarted_run_ends_with_the_same_bits(root: Path, right: LaunchResult) -> None:
    runs = root / "runs"
    assert right.notes["0.0"]["accidents"]["losses"] == right.notes["0.0"]["copies"]["losses"][10:]
    for name in (directory.METRICS, "model.safetensors", "golden.safetensors"):
        assert (runs / "accidents" / name).read_bytes() == (runs / "copies" / name).read_bytes(), name


def test_a_sharded_model_learns_the_same(root: Path, right: LaunchResult) -> None:
    seen = right.notes["0.0"]
    assert seen["parts"]["losses"] == pytest.approx(seen["copies"]["losses"], abs=1e-5, rel=0)
    assert_near(metrics(root / "runs" / "parts"), metrics(root / "runs" / "copies"), 1e-5)
    # Muon's steps are computed in bfloat16, which makes a rounding of the last digit visible.
    for name, tolerance in (("", 1e-5), ("-muon", 5e-4)):
        cut, whole = (load_file(root / "runs" / f"{kind}{name}" / "model.safetensors") for kind in ("parts", "copies"))
        assert cut.keys() == whole.keys()
        for key, tensor in cut.items():
            assert (tensor - whole[key]).norm() < tolerance, key


def test_each_process_writes_its_shards_and_nothing_is_pickled(root: Path, right: LaunchResult) -> None:
    folder = root / "runs" / "parts" / directory.CHECKPOINTS / checkpoint.step_name(12)
    files = {path.name for path in folder.iterdir()}
    parts = {f"shard-0000{number}-model-00001-of-00001.safetensors" for number in (1, 2)}
    assert files == {*parts, checkpoint.MANIFEST, checkpoint.STATE}
    first, second = (load_file(folder / name) for name in sorted(parts))
    assert len(first["model/blocks.0.mlp.fc1.weight"]) == len(second["model/blocks.0.mlp.fc1.weight"])
    touched = right.notes["0.1"]["parts"]["touched"]
    assert all("/.part-step-" in path for path in touched)
    assert any(path.endswith("shard-00002-model-00001-of-00001.safetensors") for path in touched)


def test_one_process_resumes_from_shards(root: Path, right: LaunchResult) -> None:
    run = root / "runs" / "cut-then-alone"
    found = checkpoint.load(run / directory.CHECKPOINTS, checkpoint.step_name(7))
    assert found is not None
    assert found.parts.keys() == {"model", "optimizer", "ema"}
    assert found.parts["model"]["pos_embed"].shape == found.parts["ema"]["pos_embed"].shape
    losses = train_alone(root / DATA, run)
    copies = right.notes["0.0"]["copies"]["losses"]
    assert right.notes["0.0"]["cut-then-alone"]["losses"] + losses == pytest.approx(copies, abs=1e-5, rel=0)
    assert_near(metrics(run), metrics(root / "runs" / "copies"), 1e-5)


def test_shards_resume_from_one_process(root: Path, right: LaunchResult) -> None:
    losses = right.notes["0.0"]["alone-then-cut"]["losses"]
    assert losses == pytest.approx(right.notes["0.0"]["copies"]["losses"][7:], abs=1e-5, rel=0)
    assert_near(metrics(root / "runs" / "alone-then-cut"), metrics(root / "runs" / "copies"), 1e-5)


def test_a_damaged_part_is_noticed(root: Path, tmp_path: Path) -> None:
    folder = root / "runs" / "parts" / directory.CHECKPOINTS
    name = checkpoint.step_name(8)
    copy = tmp_path / name
    copy.mkdir()
    for path in (folder / name).iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert checkpoint.load(tmp_path, name) is not None
    part = next(copy.glob("shard-00002*"))
    part.write_bytes(part.read_bytes()[:-1] + b"\7")
    assert checkpoint.load(tmp_path, name) is None


def test_one_process_cannot_shard(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--shard needs several processes[\s\S]*torchrun"):
        train("digits", shard=True, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_batches_that_cannot_be_split_evenly_are_refused_on_resuming(tmp_path: Path) -> None:
    loader = type("Loader", (), {"batch_size": 63, "world": 3})
    with pytest.raises(RunError, match=r"64 samples per batch, which cannot be split evenly[\s\S]*3 processes"):
        task.check_batch_size(loader, 64)


def test_a_single_process_is_a_world() -> None:
    world = World()
    tensors = {"a": torch.arange(3.0)}
    assert world.is_rank_zero
    assert (world.all_reduce_sum(1.0, 2.0), world.broadcast_flag(True), world.all_gather("x")) == (
        [1.0, 2.0],
        True,
        ["x"],
    )
    assert world.broadcast_tensors(tensors)["a"] is tensors["a"]
    assert world.on_rank_zero(lambda: 7) == 7
    assert not shard.is_sharded(torch.nn.Linear(2, 2))


def test_the_documented_launches_are_understood() -> None:
    page = (ROOT / "docs" / "distributed.md").read_text().replace("\\\n", "")
    launches = [shlex.split(line) for line in page.splitlines() if line.startswith("    torchrun ")]
    assert len(launches) == 4
    for words in launches:
        args = parse_args(words[1:])
        assert (args.training_script, args.module, args.training_script_args[0]) == ("vitrail", True, "train")
        assert "--run" in args.training_script_args
