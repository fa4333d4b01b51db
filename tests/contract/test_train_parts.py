"""The parts of the training loop: schedule, clock, guard, EMA, optimizers."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from vitrail import catalogue, machine
from vitrail.objective.classify import Classify
from vitrail.run.checkpoint import Checkpoint, load, save
from vitrail.training import clock as clock_module
from vitrail.training import optim
from vitrail.training.clock import Clock
from vitrail.training.ema import Ema
from vitrail.training.guard import WINDOW, Guard
from vitrail.training.learner import Learner
from vitrail.training.schedule import Schedule, lr_scale

SCHEDULES = get_args(Schedule)
KINDS = get_args(optim.OptimizerName)


def learner_of(name: str = "vit_mu_patch4_8") -> Learner:
    torch.manual_seed(0)
    return Learner(catalogue.create_model(name, num_classes=3), Classify())


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule(schedule: Schedule, warmup: float) -> None:
    """A linear rise, then a decay to exactly zero, never above one and never rising again."""
    assert lr_scale(schedule, 1.0, warmup) == 0.0
    assert lr_scale(schedule, 1.5, warmup) == 0.0
    assert lr_scale(schedule, warmup, warmup) == 1.0
    if warmup:
        assert lr_scale(schedule, 0.0, warmup) == 0.0
        assert lr_scale(schedule, -1.0, warmup) == 0.0
        assert lr_scale(schedule, warmup / 4, warmup) == pytest.approx(0.25)
    after = [lr_scale(schedule, warmup + (1 - warmup) * share / 100, warmup) for share in range(101)]
    assert after == sorted(after, reverse=True)
    assert all(0.0 <= value <= 1.0 for value in after)


def test_schedules_differ() -> None:
    assert lr_scale("cosine", 0.25, 0.0) == pytest.approx(0.5 + math.sqrt(0.5) / 2)
    assert lr_scale("linear", 0.25, 0.0) == 0.75
    assert lr_scale("wsd", 0.8, 0.1) == pytest.approx(1.0)
    assert lr_scale("wsd", 0.9, 0.1) == pytest.approx(0.5)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A wall clock controlled by the test."""
    now = [100.0]
    monkeypatch.setattr(clock_module.time, "monotonic", lambda: now[0])
    return now


def test_clock_of_steps(seconds: list[float]) -> None:
    clock = Clock(steps=8, seconds=None)
    seconds[0] += 1000.0
    assert [clock.fraction_done(step) for step in (0, 2, 8, 9)] == [0.0, 0.25, 1.0, 1.0]
    assert clock.elapsed == 1000.0


def test_clock_of_seconds(seconds: list[float]) -> None:
    """It continues across interruptions: the pause between them does not count."""
    clock = Clock(steps=None, seconds=40.0)
    seconds[0] += 10.0
    assert clock.fraction_done(10**6) == 0.25
    spent = clock.elapsed
    seconds[0] += 3600.0
    resumed = Clock(steps=None, seconds=40.0)
    seconds[0] += 5.0  # reading a checkpoint
    resumed.resume(spent)
    seconds[0] += 10.0
    assert resumed.fraction_done(0) == 0.5
    seconds[0] += 100.0
    assert resumed.fraction_done(0) == 1.0


def test_guard_lets_ordinary_losses_pass() -> None:
    guard = Guard()
    losses = [2.3 * 0.97**step + (0.4 if step % 7 == 0 else 0.0) for step in range(200)]
    assert [guard.find_problem(loss, 1.0) for loss in losses] == [None] * 200


@pytest.mark.parametrize(
    ("loss", "norm", "problem"),
    [
        (math.nan, 1.0, "the loss is nan"),
        (math.inf, 1.0, "the loss is inf"),
        (2.0, math.nan, "the gradient's norm is nan"),
        (2.0, math.inf, "the gradient's norm is inf"),
    ],
)
def test_guard_catches_non_finite_values(loss: float, norm: float, problem: str) -> None:
    guard = Guard()
    assert guard.find_problem(2.0, 1.0) is None
    before = guard.state
    assert guard.find_problem(loss, norm) == problem
    assert guard.state == before


def test_guard_catches_an_early_divergence() -> None:
    guard = Guard()
    assert guard.find_problem(2.3, 1.0) is None
    assert guard.find_problem(32.9, 1.0) is None
    assert guard.find_problem(33.1, 1.0) == "the loss rose from 2.3 to 33.1"


def test_guard_catches_a_slow_divergence() -> None:
    """The mean of the last steps is compared with the lowest so far; a single high loss is fine."""
    guard = Guard()
    assert not any(guard.find_problem(loss, 1.0) for loss in (*[1.0] * 30, 12.0, *[1.0] * 20))
    problems = [guard.find_problem(1.0 + 0.3 * step, 1.0) for step in range(40)]
    first = next(index for index, problem in enumerate(problems) if problem)
    assert WINDOW < first < 2 * WINDOW
    assert problems[first].startswith("the loss rose from 1 to 3.")
    assert problems[first].endswith("(means of 10 steps)")


@pytest.mark.parametrize("first", [0.69, 2.3, 6.9])
@pytest.mark.parametrize("low", [1e-4, 0.01])
def test_guard_catches_a_divergence_of_small_losses(first: float, low: float) -> None:
    guard = Guard()
    falling = [max(low, first * 0.9**step) for step in range(120)]
    assert not any(guard.find_problem(loss, 1.0) for loss in falling)
    problems = [guard.find_problem(min(0.9, low + 0.05 * step), 1.0) for step in range(40)]
    assert any(problems)


@pytest.mark.parametrize("spike", [0.05, 0.5])
def test_guard_lets_small_losses_fluctuate(spike: float) -> None:
    """The loss of a model that knows its training images: near zero, except for a hard batch now and then."""
    generator = torch.Generator().manual_seed(0)
    guard = Guard()
    start = 2.3 * 0.95 ** torch.arange(200.0)
    noise = 1e-3 * torch.randn(3000, generator=generator).exp()
    hard = torch.where(torch.rand(3000, generator=generator) < 0.05, spike, 0.0)
    losses = torch.cat([start, noise + hard]).tolist()
    assert [guard.find_problem(loss, 1.0) for loss in losses] == [None] * len(losses)


def test_guard_resumes_from_the_state_of_earlier_versions() -> None:
    """It does not hold the first loss, so the margin is that of these versions."""
    guard = Guard({"recent": [0.01] * WINDOW, "lowest": [0.01]})
    assert not any(guard.find_problem(0.9, 1.0) for _ in range(WINDOW))
    assert any(guard.find_problem(1.1, 1.0) for _ in range(WINDOW))
    early = Guard({"recent": [2.3] * 3})
    assert not any(early.find_problem(loss, 1.0) for loss in [2.3] * WINDOW + [0.01] * WINDOW)
    assert any(early.find_problem(0.9, 1.0) for _ in range(WINDOW))


def test_guard_lets_negative_losses_fall() -> None:
    """As those of densities and similarities do; a rise is still noticed."""
    guard = Guard()
    assert not any(guard.find_problem(-0.5 - 0.001 * step, 1.0) for step in range(60))
    assert any(guard.find_problem(-0.5 + 0.1 * step, 1.0) for step in range(60))


@pytest.mark.parametrize("num", [0, 3, WINDOW, 40])
def test_guard_resumes_from_its_state(num: int) -> None:
    """The last losses, and the lowest mean, which may be long ago."""
    losses = [0.5] * 20 + [1.4] * 20 + [1.4 + 0.1 * step for step in range(30)]
    one = Guard()
    problems = [one.find_problem(loss, 1.0) for loss in losses]
    assert any(problems)
    other = Guard()
    for loss in losses[:num]:
        other.find_problem(loss, 1.0)
    again = Guard(json.loads(json.dumps(other.state, allow_nan=False)))
    assert [again.find_problem(loss, 1.0) for loss in losses[num:]] == problems[num:]


def test_ema() -> None:
    """The decay starts low and then reaches its setting."""
    model = Learner(nn.Linear(1, 1, bias=False), Classify())
    with torch.no_grad():
        model.model.weight.zero_()
    average, expected = Ema(model, 0.9), 0.0
    for step in range(1, 200):
        with torch.no_grad():
            model.model.weight.fill_(step)
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        assert average.tensors()["weight"].item() == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx(199 - 0.9 / 0.1, rel=1e-3)


def test_ema_applied_and_restored() -> None:
    model = learner_of()
    average = Ema(model, 0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    weights = {name: parameter.detach().clone() for name, parameter in model.named_weights()}
    with average.applied():
        assert all(torch.equal(parameter, average.tensors()[name]) for name, parameter in model.named_weights())
        assert not torch.equal(model.model.head.weight, weights["head.weight"])
    assert all(torch.equal(parameter, weights[name]) for name, parameter in model.named_weights())
    other = Ema(model, 0.5)
    other.restore(average.tensors())
    assert all(torch.equal(tensor, average.tensors()[name]) for name, tensor in other.tensors().items())
    assert all(tensor is not average.tensors()[name] for name, tensor in other.tensors().items())


def groups_of(model: Learner, optimizers: list[torch.optim.Optimizer]) -> dict[str, tuple[str, float, float]]:
    """For each parameter its optimizer, its peak learning rate and its weight decay."""
    names = {parameter: name for name, parameter in model.named_weights()}
    found: dict[str, tuple[str, float, float]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                assert names[parameter] not in found
                found[names[parameter]] = (type(optimizer).__name__, group["peak"], group["weight_decay"])
    return found


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("name", ["vit_mu_patch4_8", "vit_nano_conv2_8"])
def test_what_decays(kind: optim.OptimizerName, name: str) -> None:
    model = learner_of(name)
    found = groups_of(model, optim.make_optimizers(model, kind, lr=0.1, weight_decay=0.3))
    assert found.keys() == dict(model.named_weights()).keys()
    assert {optimizer for optimizer, _, _ in found.values()} == {{"adamw": "AdamW", "sgd": "SGD"}[kind]}
    assert {peak for _, peak, _ in found.values()} == {0.1}
    decaying = {name for name, (_, _, decay) in found.items() if decay == 0.3}
    assert {decay for _, _, decay in found.values()} == {0.0, 0.3}
    assert {"head.weight", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.1.mlp.fc2.weight"} <= decaying
    assert not [name for name in decaying if "norm" in name or name.endswith(("bias", "token", "pos_embed"))]


@pytest.mark.parametrize("name", ["vit_mu_patch4_8", "vit_nano_conv2_8"])
def test_what_muon_updates(name: str) -> None:
    """Matrices and convolutions, but not the head, norms, biases, tokens and positions."""
    model = learner_of(name)
    found = groups_of(model, optim.make_optimizers(model, "muon", lr=0.1, weight_decay=0.3))
    assert found.keys() == dict(model.named_weights()).keys()
    for parameter_name, parameter in model.named_weights():
        matrix = parameter.ndim in (2, 4) and not parameter_name.startswith("head")
        expected = ("Muon", 0.1, 0.3) if matrix else ("AdamW", 0.1 * optim.ADAM_LR_FRACTION, 0.0)
        assert found[parameter_name] == expected, parameter_name


def test_layers_decay() -> None:
    """Each layer has a lower learning rate than the one above it: highest for the head, lowest for the stem."""
    model = learner_of()
    found = groups_of(model, optim.make_optimizers(model, "adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5))
    layers = {"cls": 3, "pos": 3, "patch": 3, "blocks.0": 2, "blocks.1": 1, "norm": 0, "head": 0}
    for name, (_, peak, _) in found.items():
        (below,) = (layer for start, layer in layers.items() if name.startswith(start))
        assert peak == 0.5**below, name


def test_frozen_parameters_are_left_alone() -> None:
    model = learner_of()
    model.requires_grad_(requires_grad=False)
    model.model.head.requires_grad_(requires_grad=True)
    for kind in KINDS:
        found = groups_of(model, optim.make_optimizers(model, kind, lr=1.0, weight_decay=0.1, layer_decay=0.5))
        assert set(found) == {"head.weight", "head.bias"}


def test_learning_rates_scale_with_the_peak() -> None:
    optimizers = optim.make_optimizers(learner_of(), "muon", lr=0.1, weight_decay=0.0, layer_decay=0.5)
    for factor in (0.5, 0.0, 1.0):
        optim.scale_lr(optimizers, factor)
        assert all(group["lr"] == group["peak"] * factor for each in optimizers for group in each.param_groups)


DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 32), (32, 64), (48, 24), (10, 200)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_orthogonalise(shape: tuple[int, int], scale: float, dtype: torch.dtype) -> None:
    """The nearest orthogonal matrix, about: five iterations leave singular values between 0.7 and 1.2."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scale
    (found,) = optim.orthogonalise([matrix], dtype)
    assert found.dtype == torch.float32
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.25
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.cosine_similarity(found.flatten(), (left @ right).flatten(), dim=0) > 0.97


def test_matrices_of_all_shapes_are_orthogonalised_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide and tall ones of one shape share a batch, batches are bounded, and each matrix gets what it gets alone."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(8, 24), (24, 8), (16, 16), (8, 24), (4, 4), (16, 16)]
    matrices = [torch.randn(shape, generator=generator) for shape in shapes]
    batches = []
    iterate = optim.newton_schulz
    monkeypatch.setattr(optim, "newton_schulz", lambda x, dtype: batches.append(tuple(x.shape)) or iterate(x, dtype))
    together = optim.orthogonalise(matrices, torch.float32)
    assert sorted(batches) == [(1, 4, 4), (2, 16, 16), (3, 8, 24)]
    for matrix, found in zip(matrices, together, strict=True):
        assert torch.allclose(found, optim.orthogonalise([matrix], torch.float32)[0], atol=1e-5)
    batches.clear()
    monkeypatch.setattr(optim, "BATCH_ELEMENTS", 400)
    optim.orthogonalise(matrices, torch.float32)
    assert sorted(batches) == [(1, 4, 4), (1, 8, 24), (1, 16, 16), (1, 16, 16), (2, 8, 24)]


def test_orthogonalise_what_is_nearly_flat() -> None:
    """Directions a hundred times weaker than others come up to them."""
    left, _, right = torch.linalg.svd(
        torch.randn(48, 24, generator=torch.Generator().manual_seed(0)), full_matrices=False
    )
    for dtype in DTYPES:
        (found,) = optim.orthogonalise([left @ torch.diag(torch.logspace(0, -2, 24)) @ right], dtype)
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.6
        assert values.max() < 1.25


def test_orthogonalise_nothing() -> None:
    assert torch.equal(optim.orthogonalise([torch.zeros(4, 3)], torch.float32)[0], torch.zeros(4, 3))


@pytest.mark.parametrize(("rates", "dtype"), [((1.0, 0.1), "float32"), ((1.0, 2.0), "bfloat16")])
def test_muon_takes_the_faster_number_format(
    rates: tuple[float, float], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where bfloat16 multiplies slowly it is not even tried; where it is fast, the matrices themselves decide."""
    speed = dict(zip(("float32", "bfloat16"), rates, strict=True))
    monkeypatch.setattr(machine, "matmul_rate", lambda dtype, device="cpu": speed[dtype])
    timed = []
    monkeypatch.setattr(optim, "fastest", lambda run, device: timed.append(run) or 1.0 / 3.0 ** len(timed))
    assert optim.choose_muon_dtype([torch.zeros(4, 3)]) == getattr(torch, dtype)
    assert len(timed) == (2 if dtype == "bfloat16" else 0)


def steps(model: Learner, optimizers: list[torch.optim.Optimizer], numbers: range) -> None:
    """Steps with gradients that depend on the weights and the step."""
    for number in numbers:
        optim.scale_lr(optimizers, 1.0 / (1 + number))
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.grad = noise + parameter.detach() * 0.1
        for optimizer in optimizers:
            optimizer.step()


def weights(model: Learner) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_weights()}


@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_resume(kind: optim.OptimizerName, tmp_path: Path) -> None:
    """Their state goes through a checkpoint, and the next steps are the same, bit for bit."""

    def make(model: Learner) -> list[torch.optim.Optimizer]:
        return optim.make_optimizers(model, kind, lr=0.02, weight_decay=0.1, layer_decay=0.9)

    model = learner_of().to(memory_format=torch.channels_last)
    optimizers = make(model)
    assert optim.get_state(optimizers, model) == {}
    steps(model, optimizers, range(3))
    copied = copy.deepcopy(model)
    save(tmp_path, "one", Checkpoint({"optimizer": optim.get_state(optimizers, model)}, {}))
    steps(model, optimizers, range(3, 6))

    found = load(tmp_path, "one")
    assert found is not None
    again = make(copied)
    optim.load_state(again, copied, found.parts["optimizer"])
    steps(copied, again, range(3, 6))
    assert all(torch.equal(tensor, weights(copied)[name]) for name, tensor in weights(model).items())
    expected, ended = optim.get_state(optimizers, model), optim.get_state(again, copied)
    assert expected.keys() == ended.keys()
    assert all(torch.equal(tensor, ended[name]) for name, tensor in expected.items())
    expected_keys = {"adamw": {"exp_avg", "exp_avg_sq", "step"}, "sgd": {"momentum_buffer"}}
    expected_keys["muon"] = expected_keys["adamw"] | expected_keys["sgd"]
    assert {name.rpartition(":")[2] for name in expected} == expected_keys[kind]
    optim.load_state(again, copied, {})  # back to the beginning: an empty state
    assert optim.get_state(again, copied) == {}
