"""What is measured before a run: the cost of whole steps, kernels, number formats, and the resulting plan."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contract.test_choices import RecordingView
from vitrail import create_model, load, machine, train
from vitrail.machine import Choice
from vitrail.objective.classify import Classify
from vitrail.training import throughput
from vitrail.training.learner import Learner
from vitrail.training.plan import make_plan, read_plan
from vitrail.training.throughput import Cost, Kernels
from vitrail.training.world import World

FIELDS = {"image": torch.zeros(4, 3, 16, 16), "label": torch.zeros(4, dtype=torch.int64)}


def test_a_forecast_counts_the_whole_step() -> None:
    cost = Cost(0.0, forward=1.0, backward=2.0, update=10.0, data=0.5)
    assert cost.samples_per_second(10) == pytest.approx(1 / (1 + 2 + 1 + 0.5))
    assert cost.samples_per_second(1) == pytest.approx(1 / (1 + 2 + 10 + 0.5))
    beside = cost._replace(overlaps=True)
    assert beside.samples_per_second(10) == pytest.approx(1 / 4), "a GPU computes while images are read"
    assert beside._replace(data=7.0).samples_per_second(10) == pytest.approx(1 / 7)


@pytest.mark.parametrize(
    ("gain", "attention", "conv", "kernels"),
    [
        (2.0, 1.0, 1.0, Kernels(bfloat16=True, channels_last=True, fused_attention=False)),
        (2.0, 2.0, 2.0, Kernels(bfloat16=True, channels_last=False, fused_attention=True)),
        (1.1, 1.0, 1.0, Kernels(bfloat16=False, channels_last=True, fused_attention=True)),
        (0.5, 2.0, 2.0, Kernels(bfloat16=False, channels_last=False, fused_attention=False)),
        (0.5, 1.2, 1.2, Kernels(bfloat16=False, channels_last=True, fused_attention=True)),
    ],
)
def test_kernels_are_chosen_by_speed(
    gain: float, attention: float, conv: float, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 is `gain` times as fast on the model, the other kernels so many times as fast on the machine."""
    learner = Learner(create_model("vit_nano_conv4_32", num_classes=3), Classify())
    used = []
    apply = Kernels.apply
    monkeypatch.setattr(Kernels, "apply", lambda kernels, model: (used.append(kernels), apply(kernels, model)))
    monkeypatch.setattr(machine, "other_attention_speed", lambda dtype: attention)
    monkeypatch.setattr(machine, "contiguous_speed", lambda dtype: conv)
    monkeypatch.setattr(throughput, "bfloat16_is_faster", lambda device: True)

    def measure(learner: Learner, *_: Any, bfloat16: bool) -> Cost:
        assert bfloat16 == used[-1].bfloat16
        return Cost(0.0, 1 / gain if bfloat16 else 1.0, 0.0)

    monkeypatch.setattr(throughput, "measure_cost", measure)
    found, _ = throughput.choose_kernels(learner, FIELDS, World())
    assert found == kernels
    assert used[-1] == kernels, "and the model is left as it will be trained"


def test_slow_bfloat16_is_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def measure(learner: Learner, *_: Any, bfloat16: bool) -> Cost:
        tried.append(bfloat16)
        return Cost(0.0, 1.0, 1.0)

    monkeypatch.setattr(throughput, "measure_cost", measure)
    monkeypatch.setattr(machine, "matmul_rate", lambda dtype, device="cpu": {"float32": 1.0, "bfloat16": 0.03}[dtype])
    learner = Learner(create_model("vit_mu_patch16_224", num_classes=3), Classify())
    kernels, _ = throughput.choose_kernels(learner, FIELDS, World())
    assert not kernels.bfloat16
    assert not any(tried)
    assert not throughput.bfloat16_answers_faster(learner, FIELDS, World())
    tried.clear()
    kernels, _ = throughput.choose_kernels(learner, FIELDS, World(), bfloat16=True)
    assert kernels.bfloat16, "but users can request it"


def test_an_update_is_timed_and_changes_nothing() -> None:
    from vitrail.training.plan import _make_update
    from vitrail.training.recipe.scratch import Spec

    model = Learner(create_model("vit_mu_patch4_gap_16", num_classes=3), Classify())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert throughput.time_update(model, _make_update(model, Spec(steps=1), torch.float32), World()) > 0.0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_attention_is_unfused_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: fused.append(1) or kernel(*a, **k)
    )
    model = create_model("vit_mu_patch4_gap_16", num_classes=3)
    images = torch.randn(2, 3, 16, 16)
    outputs = []
    for setting in (True, False):
        fused.clear()
        Kernels(fused_attention=setting).apply(model)
        outputs.append(model(images))
        assert bool(fused) == setting
    assert torch.allclose(*outputs, atol=1e-6)
    with torch.no_grad():
        model(images)
    assert fused, "without a gradient there is nothing to gain"


def test_a_plan_of_an_earlier_version_continues_as_it_was() -> None:
    stored = {"bfloat16": True, "images_per_second": 100.0, "told": "Training in bfloat16.", "batch_size": 8}
    plan = read_plan(stored, "images")
    assert plan["muon"] == "bfloat16"
    assert plan["channels_last"]
    assert not plan["fused_attention"]
    assert plan["evaluated_per_second"] == 150.0
    assert plan["summary"] == "Training in bfloat16."
    assert read_plan({**stored, "bfloat16": False}, "images")["fused_attention"]
    assert read_plan({**stored, "muon": "float32"}, "images")["muon"] == "float32"


def test_two_ways_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    ticks = iter(range(10**6))
    monkeypatch.setattr(machine, "now", lambda device="cpu": float(next(ticks)))
    assert machine.compare(lambda: calls.append("usual"), lambda: calls.append("other")) == 1.0
    assert calls == ["usual", "other"] * (1 + 2 * machine.TRIES)


def test_choices_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"float32": 1.0, "bfloat16": 0.5, "int8": 3.0}
    monkeypatch.setattr(machine, "matmul_rate", lambda dtype, device="cpu": rates[dtype])
    monkeypatch.setattr(machine, "other_attention_speed", lambda dtype: 0.25)
    monkeypatch.setattr(machine, "contiguous_speed", lambda dtype: 2.0)
    assert machine.choices()[:4] == (
        Choice("training and features", "float32", "bfloat16 products are 0.50 times as fast"),
        Choice("exports", "int8 is promising", "int8 products are 3.00 times as fast"),
        Choice("attention in float32", "fused", "unfused is 0.25 times as fast as usual"),
        Choice("convolutions in float32", "contiguous", "contiguous is 2.00 times as fast as channels_last"),
    )
    rates["bfloat16"] = 2.0
    chosen = {choice.what: choice.chosen for choice in machine.choices()}
    assert chosen["training and features"] == "bfloat16"
    assert chosen["attention in bfloat16"] == "unfused"


def test_this_machine_is_measured() -> None:
    assert machine.matmul_rate("float32") > 1e8
    assert machine.copy_rate() > 1e8
    assert machine.num_cores() >= 1
    assert {choice.what for choice in machine.choices()} >= {"training and features", "exports", "threads"}


def test_what_ends_a_process_is_noticed() -> None:
    assert machine.survives(lambda: None)
    assert not machine.survives(lambda: os.kill(os.getpid(), signal.SIGILL))


def test_a_process_that_cannot_be_forked_counts_as_surviving(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    assert machine.survives(lambda: None)


@pytest.mark.parametrize(
    ("flags", "survives", "limit", "broken"),
    [
        ({"amx_tile"}, False, "", True),
        ({"amx_tile"}, True, "", False),
        ({"avx2"}, False, "", False),
        ({"amx_tile"}, False, "AVX2", False),
    ],
)
def test_broken_tile_instructions_are_avoided(
    flags: set[str], survives: bool, limit: str, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the processor lists them, they fail, and nobody has set a limit."""
    monkeypatch.setenv(machine.ISA_VARIABLE, limit)
    monkeypatch.setattr(machine, "_list_flags", lambda: flags)
    monkeypatch.setattr(machine, "survives", lambda run: survives)
    assert machine.avoid_broken_tiles.__wrapped__() == broken
    assert os.environ[machine.ISA_VARIABLE] == (machine.ISA_WITHOUT_TILES if broken else limit)


def test_the_product_is_tried_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while models are built on the meta device, where nothing is computed."""
    devices = []
    monkeypatch.setattr(torch, "matmul", lambda one, _: devices.append(one.device.type))
    with torch.device("meta"):
        machine._multiply_bfloat16()
    assert devices == ["cpu"]


DIGITS = ("steps=3", "batch_size=32", "precision=float32", "small_until=0.0")


def test_a_run_that_is_slower_than_forecast_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def optimistic(*args: Any, **options: Any) -> dict[str, Any]:
        plan = make_plan(*args, **options)
        return {**plan, "samples_per_second": factor * plan["samples_per_second"]}

    monkeypatch.setattr("vitrail.training.task.make_plan", optimistic)
    monkeypatch.setattr("vitrail.training.state.GRACE_SECONDS", 0.0)
    for factor, times in ((1000.0, 1), (0.001, 0)):
        view = RecordingView()
        train("digits", recipe="scratch", run=tmp_path / str(factor), settings=DIGITS, report=False, view=view)
        assert sum("Slower than forecast" in line for line in view.said) == times


def test_a_result_says_where_the_time_went(tmp_path: Path) -> None:
    result = train("digits", recipe="scratch", run=tmp_path / "run", settings=DIGITS, report=False)
    phases = result.seconds_by_phase
    assert list(phases) == ["data", "planning", "training", "evaluation", "total"]
    assert all(seconds > 0.0 for seconds in phases.values())
    assert phases["total"] >= sum(phases.values()) - phases["total"]
    assert phases["total"] == pytest.approx(result.seconds, abs=0.1)
    assert result.images_per_second.keys() == {"forecast", "measured"}


def test_auto_uses_logistic_regression_if_it_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transformer learns nothing in three steps."""
    view = RecordingView()
    result = train("digits", run=tmp_path / "run", settings=DIGITS, report=False, view=view)
    assert load(tmp_path / "run").name == "linear_8"
    assert result.test["top1"] > 0.9
    assert "Logistic regression on pixels is better" in " ".join(result.story)
    assert any("Baseline (logistic regression on pixels)" in line for line in view.said)
    predictions = (tmp_path / "run" / "predictions.csv").read_text().splitlines()
    assert len(predictions) == 1 + 144 + 359

    monkeypatch.setattr("vitrail.training.recipe.image.baseline.C_VALUE", 1e-9)
    train("digits", run=tmp_path / "useless", settings=DIGITS, report=False)
    assert load(tmp_path / "useless").name == "vit_nano_conv2_8", "a useless baseline is not used"
    train("digits", model="vit_mu_conv2_8", run=tmp_path / "named", settings=DIGITS, report=False)
    assert load(tmp_path / "named").name == "vit_mu_conv2_8", "and there is none if the user chose the model"
