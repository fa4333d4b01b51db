"""The plan of a run: number formats, kernels, gradient accumulation and speed, measured on the model before training.

A plan is made once and stored in config.yaml, so that a run resumed later, or elsewhere, is the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from vitrail.data.loader import Loader
from vitrail.objective.classify import Classify
from vitrail.training import optim, throughput
from vitrail.training.ema import Ema
from vitrail.training.settings import CommonSettings, Settings
from vitrail.training.splits import Splits
from vitrail.training.throughput import Cost, Kernels
from vitrail.training.world import World

CLOSING_SECONDS = 2.0  # for writing the model and the report
EXPLAINED_IMAGES = 120  # the report's explanations take as long as evaluating this many images
MIN_COMPILE_SECONDS = 1200.0  # of training; torch.compile is tried in longer runs only
FORWARD_SPEED = 1.5  # evaluation relative to training, for old plans that did not measure it


class Measurement(NamedTuple):
    """The chosen kernels, the cost of a step with them, and the number format of Muon."""

    kernels: Kernels
    cost: Cost
    muon: str


def measure_training(
    model: Any, objective: Classify, loader: Loader, settings: CommonSettings, world: World
) -> Measurement:
    """Find the fastest way to train a model on this machine, and the cost of a whole step."""
    assert isinstance(settings, Settings)
    batch = next(loader.batches())
    bfloat16 = None if settings.precision == "auto" else settings.precision == "bfloat16"
    kernels, cost = throughput.choose_kernels(model, objective, batch.images, batch.labels, world, bfloat16=bfloat16)
    muon = "float32"
    if settings.optimizer == "muon":
        muon = str(optim.choose_muon_dtype(optim.find_muon_matrices(model))).removeprefix("torch.")
    update = throughput.time_update(model, _make_update(model, settings, getattr(torch, muon)), world)
    data, overlaps = throughput.time_data(loader), world.device.type != "cpu"
    return Measurement(kernels, cost._replace(update=update, data=data, overlaps=overlaps), muon)


def _make_update(model: nn.Module, settings: Settings, muon_dtype: torch.dtype) -> Callable[[], None]:
    """Create the loop's weight update (clipping, optimizers, EMA) with a learning rate of zero."""
    optimizers = optim.make_optimizers(
        model, settings.optimizer, lr=0.0, weight_decay=settings.weight_decay, muon_dtype=muon_dtype
    )
    average = Ema(model, settings.ema) if settings.ema else None

    def update() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip or float("inf"))
        for optimizer in optimizers:
            optimizer.step()
        if average is not None:
            average.update(0)

    return update


def make_plan(
    model: Any,
    objective: Classify,
    loaders: tuple[Loader, Loader, Loader],
    settings: CommonSettings,
    world: World,
    *,
    run_seconds: Callable[[float], float],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Time a few steps on each loader: training, the smaller images of the first steps, validation.

    `run_seconds` converts a speed into the length of the run.
    """
    assert isinstance(settings, Settings)
    loader, small, val = loaders
    kernels, cost, muon = measure_training(model, objective, loader, settings, world)
    parts = settings.accumulate or throughput.choose_num_parts(model, cost, loader.batch_size, world)
    local_batch = loader.batch_size // world.size
    speed = cost.images_per_second(local_batch)
    if small is not loader:
        batch = next(small.batches())
        small_cost = throughput.measure_cost(
            model, objective, batch.images, batch.labels, world, bfloat16=kernels.bfloat16
        )
        small_cost = cost._replace(forward=small_cost.forward, backward=small_cost.backward)
        speed = _mean_speed(small_cost.images_per_second(local_batch), speed, settings)
    images = next(val.batches()).images
    evaluation_speed = 1 / (throughput.time_forward(model, images, world) + cost.data)
    speed, evaluation_speed = speed * world.size, evaluation_speed * world.size
    compiled = settings.compile == "on"
    if settings.compile == "auto" and world.size == 1 and run_seconds(speed) >= MIN_COMPILE_SECONDS:
        say("Trying torch.compile, because the run is long.")
        batch, num = next(loader.batches()), loader.batch_size // parts
        compiled = throughput.compile_is_faster(
            model, objective, batch.images[:num], batch.labels[:num], world, bfloat16=kernels.bfloat16
        )
    return {
        **kernels._asdict(),
        "muon": muon,
        "batch_size": loader.batch_size,
        "accumulate": parts,
        "compile": compiled,
        "images_per_second": round(speed, 1),
        "evaluated_per_second": round(evaluation_speed, 1),
        "gigabytes": round(throughput.required_bytes(model, cost, local_batch / parts) / 2**30, 3),
        "summary": f"Training in {'bfloat16' if kernels.bfloat16 else 'float32'}, about {speed:,.0f} images per second"
        + (f", each batch in {parts} parts" if parts > 1 else "")
        + ".",
    }


def reserved_seconds(plan: dict[str, Any], splits: Splits) -> float:
    """Seconds to reserve for what follows training: validation, test, report, and writing files."""
    num = EXPLAINED_IMAGES + 2 * len(splits.val) + (len(splits.test) if splits.test is not None else 0)
    return CLOSING_SECONDS + num / plan["evaluated_per_second"]


def _mean_speed(small: float, full: float, settings: Settings) -> float:
    """Mean images per second of a run that starts with small images, for a fraction of its minutes or of its steps."""
    fraction = settings.small_until
    if settings.minutes is not None:
        return fraction * small + (1 - fraction) * full
    return 1 / (fraction / small + (1 - fraction) / full)


def read_plan(stored: dict[str, Any]) -> dict[str, Any]:
    """Complete a plan from config.yaml with what earlier versions always did."""
    return {
        "channels_last": True,
        "fused_attention": not stored["bfloat16"],
        "muon": "bfloat16",
        "evaluated_per_second": FORWARD_SPEED * stored["images_per_second"],
        "summary": stored.get("told", ""),
        **stored,
    }
