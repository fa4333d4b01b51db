"""The plan of a run: number formats, kernels, parts of a batch and speed, timed on the model before it is trained.

A plan is made once and stored in config.yaml, so that a run that continues later, or elsewhere, is the same run.
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
from vitrail.training.settings import Common, Settings
from vitrail.training.splits import Splits
from vitrail.training.throughput import Cost, Kernels
from vitrail.training.world import World

CLOSING = 2.0  # seconds for writing the model and the report
EXPLAINED = 120  # images that could be evaluated in the time of the report's maps
LONG = 1200.0  # seconds of training from which torch.compile is tried
FORWARD_SPEED = 1.5  # of evaluation, as a multiple of the speed of training, in plans that did not measure it


class Measured(NamedTuple):
    """How to compute, what a step then costs, and the number format of Muon."""

    kernels: Kernels
    cost: Cost
    muon: str


def measure_training(
    model: Any, objective: Classify, loader: Loader, settings: Common, world: World, *, quick: bool = False
) -> Measured:
    """The fastest way to train a model here, and the cost of its whole step."""
    assert isinstance(settings, Settings)
    batch = next(loader.batches())
    bfloat16 = None if settings.precision == "auto" else settings.precision == "bfloat16"
    kernels, cost = throughput.choose_kernels(
        model, objective, batch.images, batch.labels, world, bfloat16=bfloat16, quick=quick
    )
    muon = "float32"
    if settings.optimizer == "muon":
        muon = str(optim.faster_dtype(optim.matrices_of(model))).removeprefix("torch.")
    update = throughput.update_seconds(model, _update(model, settings, getattr(torch, muon)), world)
    data, overlaps = throughput.data_seconds(loader), world.device.type != "cpu"
    return Measured(kernels, cost._replace(update=update, data=data, overlaps=overlaps), muon)


def _update(model: nn.Module, settings: Settings, muon_dtype: torch.dtype) -> Callable[[], None]:
    """An update of the weights as the loop makes it, of a learning rate of zero."""
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
    settings: Common,
    world: World,
    *,
    seconds_of: Callable[[float], float],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Time a few steps on each of the loaders (training, the small images that it may begin with, validation).

    `seconds_of` a speed are those of the run.
    """
    assert isinstance(settings, Settings)
    loader, small, val = loaders
    kernels, cost, muon = measure_training(model, objective, loader, settings, world)
    parts = settings.accumulate or throughput.parts_that_fit(model, cost, loader.batch_size, world)
    mine = loader.batch_size // world.size
    speed = cost.images_per_second(mine)
    if small is not loader:
        batch = next(small.batches())
        less = throughput.measure(model, objective, batch.images, batch.labels, world, bfloat16=kernels.bfloat16)
        fast = cost._replace(forward=less.forward, backward=less.backward).images_per_second(mine)
        speed = _mean_speed(fast, speed, settings)
    images = next(val.batches()).images
    evaluated = 1 / (throughput.forward_seconds(model, images, world) + cost.data)
    speed, evaluated = speed * world.size, evaluated * world.size
    compiled = settings.compile == "on"
    if settings.compile == "auto" and world.size == 1 and seconds_of(speed) >= LONG:
        say("Trying torch.compile, since the run is long.")
        batch, num = next(loader.batches()), loader.batch_size // parts
        compiled = throughput.compiling_pays(
            model, objective, batch.images[:num], batch.labels[:num], world, bfloat16=kernels.bfloat16
        )
    return {
        **kernels._asdict(),
        "muon": muon,
        "batch_size": loader.batch_size,
        "accumulate": parts,
        "compile": compiled,
        "images_per_second": round(speed, 1),
        "evaluated_per_second": round(evaluated, 1),
        "gigabytes": round(throughput.needed_bytes(model, cost, mine / parts) / 2**30, 3),
        "summary": f"Training in {'bfloat16' if kernels.bfloat16 else 'float32'}, about {speed:,.0f} images a second"
        + (f", each batch in {parts} parts" if parts > 1 else "")
        + ".",
    }


def seconds_held_back(plan: dict[str, Any], splits: Splits) -> float:
    """What follows training: the last validations, the test, the report with its maps, the files of the run."""
    num = EXPLAINED + 2 * len(splits.val) + (len(splits.test) if splits.test is not None else 0)
    return CLOSING + num / plan["evaluated_per_second"]


def _mean_speed(small: float, full: float, settings: Settings) -> float:
    """Images per second of a run that begins with small images: for a fraction of its minutes, or of its steps."""
    fraction = settings.small_until
    if settings.minutes is not None:
        return fraction * small + (1 - fraction) * full
    return 1 / (fraction / small + (1 - fraction) / full)


def read_plan(stored: dict[str, Any]) -> dict[str, Any]:
    """A plan from config.yaml; what plans of earlier versions did not choose is as it was then."""
    return {
        "channels_last": True,
        "fused_attention": not stored["bfloat16"],
        "muon": "bfloat16",
        "evaluated_per_second": FORWARD_SPEED * stored["images_per_second"],
        "summary": stored.get("told", ""),
        **stored,
    }
