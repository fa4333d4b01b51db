"""The waist: any objective trains through the same loop, in any number of processes, parts and stages."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import nn

from tests.conftest import ROOT
from tests.contract import waist
from tests.contract.disturbed import KILLED, wait_until
from tests.forge import Forge
from vitrail.errors import SpecError
from vitrail.objective.classify import Classify
from vitrail.run import checkpoint
from vitrail.training import optim
from vitrail.training.evaluation import infer
from vitrail.training.learner import Learner
from vitrail.training.plan import check_coupled
from vitrail.training.throughput import Kernels
from vitrail.training.world import World, connect
from vitrail.weights.tensor_files import read_tensors, write_tensors

WORKER = Path(__file__).with_name("waist_worker.py")
PATIENCE = 150.0
NUM_KILLS = 10


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """200 digits."""
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    digits = load_digits()
    images = (digits.images[:200] * 15).astype(np.uint8)
    np.savez(path, x_train=images, y_train=digits.target[:200])
    return str(path)


@pytest.fixture(scope="module")
def alone(data: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Each job in this process."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("alone")
    return {name: waist.train(str(folder / name), data, **job) for name, job in JOBS.items()}


JOBS: dict[str, dict[str, Any]] = {
    "decode": {"objective": "decode"},
    "decode-2": {"objective": "decode", "words": ("accumulate=2",)},
    "decode-4": {"objective": "decode", "words": ("accumulate=4",)},
    "sam": {"objective": "decode", "words": ("sam=0.05", "accumulate=2", "ema=0.9")},
    "pair": {"objective": "pair", "words": ("optimizer=sgd", "lr=0.1")},  # AdamW amplifies gradients near zero
}


@pytest.fixture(scope="module")
def two_ranks(data: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Each job with two processes, copied (DDP) and sharded (FSDP2)."""
    folder = tmp_path_factory.mktemp("ranks")
    plan = {
        f"{name}{'-sharded' if shard else ''}": {
            "run": str(folder / f"{name}-{shard}"),
            "data": data,
            "shard": shard,
            **job,
        }
        for name, job in JOBS.items()
        for shard in (False, True)
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, str(WORKER), str(folder / "plan.json")],
        check=False,
        capture_output=True,
        text=True,
        env=env,
        timeout=PATIENCE,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "plan.0").read_text())


@pytest.mark.parametrize("parts", [2, 4])
def test_uneven_units_give_the_same_loss_in_parts(alone: dict[str, dict[str, Any]], parts: int) -> None:
    assert alone[f"decode-{parts}"]["losses"] == pytest.approx(alone["decode"]["losses"], abs=1e-6)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("how", ["", "-sharded"])
def test_two_processes_give_the_same_loss(
    name: str, how: str, alone: dict[str, dict[str, Any]], two_ranks: dict[str, dict[str, Any]]
) -> None:
    """Uneven units, an objective with parameters of its own, and a coupled one that gathers over processes."""
    assert len(alone[name]["losses"]) == 6
    assert two_ranks[f"{name}{how}"]["losses"] == pytest.approx(alone[name]["losses"], abs=1e-6)


def test_losses_are_means_over_units(data: str, tmp_path: Path) -> None:
    """Not over images: those that count for more weigh more."""
    task = waist.make_task(tmp_path / "run", data, ())
    model = task.new_model(num_classes=10)
    torch.manual_seed(1)
    learner = Learner(model, waist.Decode())
    loader = task.make_loader(
        task.splits.train, task.kind.preparation(task, learner.model, training=True), training=True
    )
    fields = next(loader.batches()).fields
    losses, units = learner(fields), learner.objective.units(fields)
    expected = losses.double().sum().item() / units.double().sum().item()
    trained = waist.train(str(tmp_path / "other"), data, "decode")
    assert trained["losses"][0] == pytest.approx(expected, abs=1e-5)
    assert trained["losses"][0] != pytest.approx(losses.double().mean().item(), rel=0.1)


def test_a_coupled_objective_is_never_split(data: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"compares the samples of a batch[\s\S]*accumulate=2\.[\s\S]*accumulate=1"):
        waist.train(str(tmp_path / "run"), data, "pair", ("accumulate=2",))


def test_an_objective_owns_parameters(data: str, tmp_path: Path) -> None:
    """They are trained, averaged and saved beside the model's, whose names stay as they are."""
    task = waist.make_task(tmp_path / "run", data, ("ema=0.9", "optimizer=muon"))
    model, objective = task.new_model(num_classes=10), waist.Decode()
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    task.fit(model, objective)
    assert not torch.equal(objective.decoder[0].weight, before["decoder.0.weight"])
    newest = tmp_path / "run" / "checkpoints" / checkpoint.step_name(6)
    parts = {kind: load_file(newest / f"{kind}.safetensors") for kind in ("model", "ema", "optimizer")}
    assert {"objective.decoder.0.weight", "objective.num_calls", "blocks.0.attn.qkv.weight"} <= parts["model"].keys()
    assert {"objective.decoder.0.weight", "blocks.0.attn.qkv.weight"} <= parts["ema"].keys()
    assert "objective.decoder.0.weight:momentum_buffer" in parts["optimizer"], "by Muon"
    assert "objective.decoder.2.weight:exp_avg" in parts["optimizer"], "a head, by AdamW"
    assert torch.equal(parts["ema"]["objective.decoder.0.weight"], objective.decoder[0].weight), "the average is kept"


@pytest.mark.parametrize("stage", ["teacher", "student"])
def test_killed_in_each_stage(stage: str, data: str, tmp_path: Path, forge: Forge) -> None:
    """Ten times at random moments of a stage; then the same bits as a run that was never killed."""
    results = [tmp_path / name for name in ("calm.json", "killed.json")]
    notes, log, rng = tmp_path / "notes", tmp_path / "log", random.Random(stage)
    calm = (str(tmp_path / "calm"), data, "stages", ("steps=12",), str(notes), str(results[0]))
    assert forge.run(waist.train_in_fork, *calm, log=log) == 0, log.read_text()
    killed = (str(tmp_path / "killed"), data, "stages", ("steps=12",), str(notes), str(results[1]))
    reached = 0
    for _ in range(NUM_KILLS):
        notes.write_text("")
        pid = forge.start(waist.train_in_fork, *killed, log=log)
        wait_until(lambda: notes.read_text().count(stage) > 0 or results[1].exists())
        time.sleep(rng.uniform(0.0, 0.06))
        os.kill(pid, signal.SIGKILL)
        if forge.wait(pid) == KILLED:
            reached += 1
        results[1].unlink(missing_ok=True)
    assert reached >= NUM_KILLS // 2
    assert forge.run(waist.train_in_fork, *killed, log=log) == 0, log.read_text()
    assert json.loads(results[1].read_text())["bits"] == json.loads(results[0].read_text())["bits"]


def test_a_killed_objective_resumes(data: str, tmp_path: Path, forge: Forge) -> None:
    """One with parameters and buffers of its own, after kill -9."""
    notes, log, result = tmp_path / "notes", tmp_path / "log", tmp_path / "result.json"
    words = ("steps=12",)
    notes.write_text("")
    job = (str(tmp_path / "run"), data, "decode", words, str(notes), str(result))
    pid = forge.start(waist.train_in_fork, *job, log=log)
    wait_until(lambda: len(notes.read_text().split()) > 10)
    os.kill(pid, signal.SIGKILL)
    assert forge.wait(pid) == KILLED
    assert forge.run(waist.train_in_fork, *job, log=log) == 0, log.read_text()
    calm = (str(tmp_path / "calm"), data, "decode", words, str(notes), str(tmp_path / "calm.json"))
    assert forge.run(waist.train_in_fork, *calm, log=log) == 0
    assert json.loads(result.read_text())["bits"] == json.loads((tmp_path / "calm.json").read_text())["bits"]


def test_a_second_fit_needs_a_stage(data: str, tmp_path: Path) -> None:
    """It would find the checkpoints of the first, and return its model."""
    task = waist.make_task(tmp_path / "run", data, ("steps=1",))
    task.fit(task.new_model(num_classes=10))
    with pytest.raises(AssertionError, match=r"task\.stage"):
        task.fit(task.new_model(num_classes=10))
    other = task.new_model(num_classes=10)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    task.stage("second").fit(other)
    assert any(not torch.equal(value, before[name]) for name, value in other.state_dict().items())
    assert (tmp_path / "run" / "stages" / "second" / "checkpoints").is_dir()
    assert task.config["stages"].keys() == {"second"}


def test_a_finished_stage_is_not_trained_again(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a moment, if the same command later leaves it more time."""
    words = ("steps=null", "minutes=0.05", "eval_every=1000", "save_every=1000")
    task = waist.make_task(tmp_path / "run", data, words)
    first = task.new_model(num_classes=10)
    done = task.stage("first", until=0.5).fit(first)
    assert done.step > 0
    again = waist.make_task(tmp_path / "run", data, words)
    again.timing.started += 100.0  # all the time in the world
    monkeypatch.setattr("vitrail.training.loop.compute_gradients", None)
    second = again.new_model(num_classes=10)
    assert again.stage("first", until=0.5).fit(second).step == done.step
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())


def test_stages_share_the_minutes(data: str, tmp_path: Path) -> None:
    task = waist.make_task(tmp_path / "run", data, ("steps=null", "minutes=10.0"))
    early, late = (task.stage("one", until=until).seconds_left() for until in (0.5, 1.0))
    assert early is not None
    assert late is not None
    assert 290 < early <= 300
    assert 590 < late <= 600


def test_a_coupled_objective_skips_nothing_and_is_released(data: str, tmp_path: Path) -> None:
    objective = waist.Pair()
    settings = waist.make_task(tmp_path / "skip", data, ("on_error=skip",)).settings
    check_coupled(Learner(torch.nn.Identity(), objective), settings, World())  # one process may
    with pytest.raises(SpecError, match=r"none can be skipped[\s\S]*on_error=skip"):
        check_coupled(Learner(torch.nn.Identity(), objective), settings, World(rank=1, size=2))
    connect(objective, World(rank=1, size=2))
    assert objective.rank == 1
    connect(objective, World())
    features = torch.ones(2)
    assert objective.rank == 0
    assert objective.gather(features) is features


def test_a_learner_puts_its_model_back_in_its_mode(data: str, tmp_path: Path) -> None:
    task = waist.make_task(tmp_path / "run", data, ())
    for training in (True, False):
        model = task.new_model(num_classes=10).train(training)
        task.infer(model, task.splits.val, "")
        assert model.training == training


class Drawing(waist.Decode):
    """Answers that depend on random numbers."""

    def answers(self, model: nn.Module, fields: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"drawn": torch.rand(len(fields["label"]))}


def test_evaluation_is_seeded(data: str, tmp_path: Path) -> None:
    """It draws the same numbers every time, and takes none from the caller."""
    task = waist.make_task(tmp_path / "run", data, ())
    model = task.new_model(num_classes=10)
    loader = task.make_loader(task.splits.train, task.kind.preparation(task, model, training=False))
    learner = Learner(model, Drawing())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = infer(learner, loader, World())
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first["drawn"], infer(learner, loader, World())["drawn"])
    assert len(first["drawn"].unique()) == first.num


class Tied(nn.Module):
    """An embedding that is also the head."""

    TAKES = ("text",)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.heads = (self.head,)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(text)).mean(dim=1))


def test_tied_weights_survive_a_checkpoint(tmp_path: Path) -> None:
    learner = Learner(Tied(), Classify())
    assert [name for name, _ in learner.named_weights()] == ["embed.weight", "mix.weight", "mix.bias"]
    checkpoint.save(tmp_path, "step-000000001", checkpoint.Checkpoint({"model": learner.tensors()}, {}))
    found = checkpoint.load(tmp_path, "step-000000001")
    assert found is not None
    other = Learner(Tied(), Classify())
    from vitrail.training import shard

    shard.copy_into(other.tensors(), found.parts["model"])
    assert torch.equal(other.model.head.weight, learner.model.embed.weight)
    assert other.model.head.weight is other.model.embed.weight


def test_tied_weights_are_written_under_each_name(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    write_tensors(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(read_tensors(tmp_path / "model.safetensors"))
    assert torch.equal(other.head.weight, model.embed.weight)
    assert other.head.weight is other.embed.weight


def test_convolutions_of_video_keep_their_layout() -> None:
    learner = Learner(nn.Sequential(nn.Conv3d(3, 4, 2), nn.Conv2d(3, 4, 2)), Classify())
    Kernels(channels_last=True).apply(learner)
    assert learner.model[1].weight.is_contiguous(memory_format=torch.channels_last)
    assert learner.model[0].weight.is_contiguous()


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_embeddings_and_heads_are_known_by_module(kind: optim.OptimizerName) -> None:
    """Whatever they are called: AdamW trains them, and embeddings do not decay."""
    learner = Learner(Tied(), Classify())
    groups = {
        name: (type(optimizer).__name__, group["weight_decay"])
        for optimizer in optim.make_optimizers(learner, kind, lr=0.1, weight_decay=0.3)
        for group in optimizer.param_groups
        for name, parameter in learner.named_weights()
        if any(parameter is each for each in group["params"])
    }
    assert groups["embed.weight"] == ("AdamW", 0.0)
    assert groups["mix.weight"] == ("Muon" if kind == "muon" else "AdamW", 0.3)


WORDS = r"image|pixel|[\"']text|sound|video|classif|regress|top1|logits|cross_entropy|\bmask"


def test_training_names_no_objective_and_no_modality() -> None:
    """Only recipes do; so that a new system is a few new files."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "vitrail" / "training").glob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(WORDS, line, re.IGNORECASE)
    ]
    assert found == []
