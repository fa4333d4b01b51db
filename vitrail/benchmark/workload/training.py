"""Where the time of a training step goes (data, forward, backward, optimizer, EMA), and the time of evaluation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from vitrail import catalogue
from vitrail.benchmark.compare import BenchResult, Row, hardware
from vitrail.data.find import open_data
from vitrail.data.loader import Loader
from vitrail.data.prepare.image import image_loader
from vitrail.data.table import Source
from vitrail.machine import num_cores, seconds_of
from vitrail.objective.classify import Classify
from vitrail.training import optim, throughput
from vitrail.training.ema import Ema
from vitrail.training.learner import Learner
from vitrail.training.plan import Measurement, measure_training
from vitrail.training.recipe import scratch
from vitrail.training.world import World

WHOLE_STEP = "whole step"
PHASES = ("data", "forward", "backward", "optimizer", "EMA", WHOLE_STEP)
NUM_WARMUP = 2  # steps
NUM_EVALUATIONS = 3
SETTINGS, WORLD = scratch.Spec(steps=1), World()


class Trainee(NamedTuple):
    """A model with everything that a training step needs, measured and ready."""

    learner: Learner
    loader: Loader
    measurement: Measurement
    optimizers: list[torch.optim.Optimizer]
    ema: Ema


def run(
    data: str | Path | None = None,
    *,
    model: str | None = None,
    rounds: int = 10,
    progress: Callable[[int, int], None] | None = None,
) -> BenchResult:
    """Time `rounds` real steps of the recipe `scratch`, with a learning rate of zero."""
    source = open_data(data or "digits")
    source = source.split("train") if source.split_names else source
    name = model or scratch.suggest(source)
    trainee = _prepare(source, name)
    seconds = _time_steps(trainee, rounds, progress)
    fields = next(trainee.loader.batches()).fields
    batch_size = trainee.loader.batch_size
    seconds["evaluation of a batch"] = [
        throughput.time_answers(trainee.learner, fields, WORLD) * batch_size
        for _ in range(min(NUM_EVALUATIONS, rounds))
    ]
    kernels, cost, muon = trainee.measurement
    step_seconds = statistics.median(seconds[WHOLE_STEP])
    setting = {
        "data": source.origin,
        "images": len(source),
        "model": name,
        "batch_size": batch_size,
        **kernels._asdict(),
        "muon": muon,
        "forecast_images_per_second": round(cost.samples_per_second(batch_size), 1),
        "measured_images_per_second": round(batch_size / step_seconds, 1),
        "rounds": rounds,
        "seed": 0,
    }
    rows = tuple(_make_row(phase, values, step_seconds) for phase, values in seconds.items())
    return BenchResult("training", setting, hardware(), WHOLE_STEP, rows, ())


def _prepare(source: Source, name: str) -> Trainee:
    """Create a model and its loader, and choose kernels as a run would."""
    model = catalogue.create_model(name, num_classes=len(source.classes)).train()
    learner = Learner(model, Classify(label_smoothing=SETTINGS.label_smoothing))
    loader = image_loader(
        source,
        model.preprocess,
        batch_size=min(SETTINGS.batch_size, len(source)),
        augment=SETTINGS.augment,
        shuffle=True,
        drop_last=True,
        workers=num_cores(),
    )
    measurement = measure_training(learner, loader, SETTINGS, WORLD)
    optimizers = optim.make_optimizers(
        learner,
        SETTINGS.optimizer,
        lr=0.0,
        weight_decay=SETTINGS.weight_decay,
        muon_dtype=getattr(torch, measurement.muon),
    )
    return Trainee(learner, loader, measurement, optimizers, Ema(learner, SETTINGS.ema))


def _time_steps(trainee: Trainee, rounds: int, progress: Callable[[int, int], None] | None) -> dict[str, list[float]]:
    """The seconds of each phase in each step, after a warm-up."""
    seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}
    batches = trainee.loader.batches()
    for number in range(rounds + NUM_WARMUP):
        started = time.perf_counter()
        batch = next(batches)
        data = time.perf_counter() - started
        forward, backward = throughput.time_step(
            trainee.learner,
            batch.fields,
            WORLD,
            bfloat16=trainee.measurement.kernels.bfloat16,
        )
        update = seconds_of(lambda: _update(trainee.learner, trainee.optimizers))
        ema = seconds_of(lambda: trainee.ema.update(0))
        trainee.learner.zero_grad(set_to_none=True)
        times = (data, forward, backward, update, ema, time.perf_counter() - started)
        if number >= NUM_WARMUP:
            for phase, value in zip(PHASES, times, strict=True):
                seconds[phase].append(value)
        if progress is not None:
            progress(number + 1, rounds + NUM_WARMUP)
    return seconds


def _update(learner: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    nn.utils.clip_grad_norm_(learner.parameters(), SETTINGS.clip or float("inf"))
    for optimizer in optimizers:
        optimizer.step()


def _make_row(phase: str, values: list[float], step_seconds: float) -> Row:
    """The median of a phase in milliseconds, and its ratio to the whole step."""
    median = statistics.median(values)
    return Row(
        name=phase,
        value=1000 * median,
        unit="ms",
        ratio=median / step_seconds,
        ratio_low=min(values) / step_seconds,
        ratio_high=max(values) / step_seconds,
        values=tuple(round(1000 * value, 3) for value in values),
    )
