"""The plan of a run: number formats, kernels, gradient accumulation and speed, measured before training.

A plan is made once and stored in config.yaml, so that a run resumed later, or elsewhere, is the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from vitrail.batch import count_rows, first_rows
from vitrail.data.loader import Loader
from vitrail.errors import DataError, SpecError
from vitrail.training import optim, throughput
from vitrail.training.ema import Ema
from vitrail.training.learner import Learner
from vitrail.training.settings import CommonSettings, Settings
from vitrail.training.splits import Splits
from vitrail.training.throughput import Cost, Kernels
from vitrail.training.world import World

CLOSING_SECONDS = 2.0  # for writing the model and the report
EXPLAINED_SAMPLES = 120  # the report's explanations take as long as evaluating this many samples
MIN_COMPILE_SECONDS = 1200.0  # of training; torch.compile is tried in longer runs only
FORWARD_SPEED = 1.5  # evaluation relative to training, for old plans that did not measure it


class Measurement(NamedTuple):
    """The chosen kernels, the cost of a step with them, and the number format of Muon."""

    kernels: Kernels
    cost: Cost
    muon: str


def measure_training(learner: Learner, loader: Loader, settings: CommonSettings, world: World) -> Measurement:
    """Find the fastest way to train on this machine, and the cost of a whole step."""
    assert isinstance(settings, Settings)
    batch = loader.typical_batch()
    bfloat16 = None if settings.precision == "auto" else settings.precision == "bfloat16"
    kernels, cost = throughput.choose_kernels(learner, batch.fields, world, bfloat16=bfloat16)
    muon = "float32"
    if settings.optimizer == "muon":
        muon = str(optim.choose_muon_dtype(optim.find_muon_matrices(learner))).removeprefix("torch.")
    update = throughput.time_update(learner, _make_update(learner, settings, getattr(torch, muon)), world)
    data, overlaps = throughput.time_data(loader), world.device.type != "cpu"
    num_bytes = cost.bytes_per_sample * loader.longest_ratio  # the longest batch must fit too
    passes = 1 if settings.sam is None else 2
    cost = cost._replace(update=update, data=data, overlaps=overlaps, bytes_per_sample=num_bytes, passes=passes)
    return Measurement(kernels, cost, muon)


def _make_update(learner: Learner, settings: Settings, muon_dtype: torch.dtype) -> Callable[[], None]:
    """Create the loop's weight update (clipping, optimizers, EMA) with a learning rate of zero."""
    optimizers = optim.make_optimizers(
        learner, settings.optimizer, lr=0.0, weight_decay=settings.weight_decay, muon_dtype=muon_dtype
    )
    average = Ema(learner, settings.ema) if settings.ema else None

    def update() -> None:
        nn.utils.clip_grad_norm_(learner.parameters(), settings.clip or float("inf"))
        for optimizer in optimizers:
            optimizer.step()
        if average is not None:
            average.update(0)

    return update


def make_plan(
    learner: Learner,
    measurement: Measurement,
    loaders: tuple[Loader, Loader, Loader],
    settings: CommonSettings,
    world: World,
    *,
    run_seconds: Callable[[float], float],
    say: Callable[[str], None],
    noun: str = "samples",
) -> dict[str, Any]:
    """Time a few steps of what was not measured yet: the smaller samples of the first steps, validation.

    `run_seconds` converts a speed into the length of the run.
    """
    assert isinstance(settings, Settings)
    loader, small, val = loaders
    kernels, cost, muon = measurement
    parts = settings.accumulate or throughput.choose_num_parts(learner, cost, loader.batch_size, world)
    check_parts(learner, parts)
    local_batch = loader.batch_size // world.size
    speed = cost.samples_per_second(local_batch)
    if small is not loader:
        batch = small.typical_batch()
        small_cost = throughput.measure_cost(learner, batch.fields, world, bfloat16=kernels.bfloat16)
        small_cost = cost._replace(forward=small_cost.forward, backward=small_cost.backward)
        speed = _mean_speed(small_cost.samples_per_second(local_batch), speed, settings)
    fields = val.typical_batch().fields
    if not count_rows(fields):
        raise DataError("none of the validation samples could be read.", got=f"{len(val.skipped)} unreadable ones.")
    evaluation_speed = 1 / (throughput.time_answers(learner, fields, world) + cost.data)
    speed, evaluation_speed = speed * world.size, evaluation_speed * world.size
    compiled = settings.compile == "on"
    if settings.compile == "auto" and world.size == 1 and run_seconds(speed) >= MIN_COMPILE_SECONDS:
        say("Trying torch.compile, because the run is long.")
        batch, num = loader.typical_batch(), loader.batch_size // parts
        compiled = throughput.compile_is_faster(
            learner, first_rows(batch.fields, num), world, bfloat16=kernels.bfloat16
        )
    return {
        **kernels._asdict(),
        "muon": muon,
        "batch_size": loader.batch_size,
        "accumulate": parts,
        "compile": compiled,
        "samples_per_second": round(speed, 1),
        "evaluated_per_second": round(evaluation_speed, 1),
        "gigabytes": round(throughput.required_bytes(learner, cost, local_batch / parts) / 2**30, 3),
        "summary": f"Training in {'bfloat16' if kernels.bfloat16 else 'float32'}, about {speed:,.0f} {noun} per second"
        + (f", each batch in {parts} parts" if parts > 1 else "")
        + ".",
    }


def check_parts(learner: Learner, num_parts: int) -> None:
    """Refuse to split a batch whose samples are compared with each other."""
    if learner.objective.COUPLED and num_parts > 1:
        raise SpecError(
            "this objective compares the samples of a batch with each other, so a batch cannot be split into parts.",
            got=f"accumulate={num_parts}.",
            hint="accumulate=1 and a smaller batch_size, or more processes.",
        )


def check_coupled(learner: Learner, settings: CommonSettings, world: World) -> None:
    """Refuse to skip samples of an objective that compares them: processes would have different numbers of them."""
    if learner.objective.COUPLED and settings.on_error == "skip" and world.size > 1:
        raise SpecError(
            "this objective compares the samples of all processes with each other, so none can be skipped.",
            got=f"on_error=skip and {world.size} processes.",
            hint="one process, or on_error=error after removing what cannot be read.",
        )


def reserved_seconds(plan: dict[str, Any], splits: Splits, answer_cost: float = 0.0) -> float:
    """Seconds to reserve for what follows training: validation, test, answers, report, and writing files."""
    num_val, num_test = len(splits.val), len(splits.test) if splits.test is not None else 0
    num = EXPLAINED_SAMPLES + 2 * num_val + num_test + answer_cost
    return CLOSING_SECONDS + num / plan["evaluated_per_second"]


def _mean_speed(small: float, full: float, settings: Settings) -> float:
    """Mean samples per second of a run that starts with small ones, for a fraction of its minutes or of its steps."""
    fraction = settings.small_until
    if settings.minutes is not None:
        return fraction * small + (1 - fraction) * full
    return 1 / (fraction / small + (1 - fraction) / full)


def read_plan(stored: dict[str, Any], noun: str = "samples") -> dict[str, Any]:
    """Complete a plan from config.yaml with what earlier versions always did, under their names."""
    speed: float = stored.get("samples_per_second", stored.get(f"{noun}_per_second", 0.0))
    return {
        "channels_last": True,
        "fused_attention": not stored["bfloat16"],
        "muon": "bfloat16",
        "samples_per_second": speed,
        "evaluated_per_second": FORWARD_SPEED * speed,
        "summary": stored.get("told", ""),
        **stored,
    }
