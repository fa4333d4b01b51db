"""Dry runs: a forecast of time and memory, and the learning-rate finder. Nothing is saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from vitrail.contract import Model, Objective
from vitrail.data.table import Source, Stream
from vitrail.errors import TrainError
from vitrail.training import optim
from vitrail.training.learner import Learner
from vitrail.training.plan import measure_training, reserved_seconds
from vitrail.training.settings import CommonSettings, Settings
from vitrail.training.splits import Splits
from vitrail.training.task import Task

A = TypeVar("A", bound=CommonSettings)
NUM_PER_CLASS = 2
MAX_SAMPLES = 512
NUM_RATES = 60
LR_RANGE = (1e-3, 1e2)  # times the recipe's default
SMOOTHING = 0.8
DIVERGED = 1.5  # times the lowest loss
PEAK_FRACTION = 0.1  # of the rate with the lowest loss makes a good peak


class LrSearch(NamedTuple):
    """The suggested learning rate, and the loss at each rate tried."""

    lr: float
    tried: tuple[tuple[float, float], ...]


def limit_to_one_step(settings: A) -> A:
    """Limit a run to one step."""
    return settings.with_length(steps=1) if isinstance(settings, Settings) else settings


def sample_splits(splits: Splits) -> Splits:
    """Sample a few items per class from each split."""
    train = sample_source(splits.train)
    val = train if splits.val is splits.train else sample_source(splits.val)
    return splits._replace(train=train, val=val, test=None if splits.test is None else sample_source(splits.test))


def sample_source(source: Source) -> Source:
    """Sample a few items per class."""
    if isinstance(source, Stream):
        return replace(source, shards=source.chosen[:1])
    if source.multi_label or not source.classes:
        return source.only(range(min(MAX_SAMPLES, len(source))))
    rows = [np.flatnonzero(source.labels == label)[:NUM_PER_CLASS] for label in range(len(source.classes))]
    return source.only(np.sort(np.concatenate(rows))[:MAX_SAMPLES])


def forecast(task: Task, settings: CommonSettings, splits: Splits) -> tuple[str, ...]:
    """Forecast the whole run from the measured speed of one step."""
    stages = (task.config.get("decisions", {}), *task.config.get("stages", {}).values())
    plan = next((stage["plan"] for stage in reversed(stages) if "plan" in stage), None)
    if plan is None or not isinstance(settings, Settings):
        speed = task.timing.speed["forecast"]
        note = (
            f"Features of {len(splits.train):,} {task.kind.NOUN}, each in two views, take about "
            f"{2 * len(splits.train) / speed:,.0f} s ({speed:,.0f} per second), then a linear model is fitted on them."
        )
        return (note,)
    speed, num = plan["samples_per_second"], len(splits.train)
    if settings.minutes is not None:
        samples = (
            max(1.0, settings.minutes * 60 - reserved_seconds(plan, splits, task.kind.answer_cost(splits))) * speed
        )
        steps = samples / settings.batch_size
        length = f"{settings.minutes:g} minutes are about {steps:,.0f} steps, {samples / num:,.1f} epochs"
    else:
        steps = settings.steps or math.ceil((settings.epochs or 1) * max(1, num // settings.batch_size))
        length = f"{steps:,} steps take about {steps * settings.batch_size / speed / 60:,.1f} minutes"
    parts = f", each batch in {plan['accumulate']} parts" if plan["accumulate"] > 1 else ""
    return (
        f"{num:,} {task.kind.NOUN} to train on, {len(splits.val):,} to validate on.",
        f"{plan['summary'][:-1]}; about {plan['gigabytes']:.2f} GiB of memory{parts}.",
        f"{length}.",
    )


def search_lr(task: Task, new_objective: Callable[[Task, Model], Objective]) -> LrSearch:
    """Raise the learning rate step by step until the recipe's loss diverges (Smith, arXiv 1506.01186)."""
    settings = task.settings
    if not isinstance(settings, Settings):
        raise TrainError(
            "this recipe has no learning rate.", got="a recipe without training steps.", hint="--recipe finetune."
        )
    model = task.kind.new_model(task)
    learner = Learner(model, new_objective(task, model)).to(task.world.device).train()
    loader = task.make_loader(task.splits.train, task.kind.preparation(task, model, training=True), training=True)
    # As the run would compute: on its device, in its number format, with its kernels.
    kernels, _, muon = measure_training(learner, loader, settings, task.world)
    low, high = (settings.lr * factor for factor in LR_RANGE)
    optimizers = optim.make_optimizers(
        learner,
        settings.optimizer,
        lr=low,
        weight_decay=settings.weight_decay,
        layer_decay=settings.layer_decay,
        muon_dtype=getattr(torch, muon),
    )
    tried: list[tuple[float, float]] = []
    mean = math.nan
    for number, batch in enumerate(loader.batches(0, NUM_RATES)):
        rate = low * (high / low) ** (number / (NUM_RATES - 1))
        optim.scale_lr(optimizers, rate / low)
        learner.zero_grad(set_to_none=True)
        fields = batch.to(task.world.device).fields
        with torch.autocast(task.world.device.type, torch.bfloat16, enabled=kernels.bfloat16):
            losses = learner(fields)
        loss = losses.sum() / learner.objective.units(fields).sum()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        mean = loss.item() if math.isnan(mean) else SMOOTHING * mean + (1 - SMOOTHING) * loss.item()
        tried.append((rate, mean))
        task.view.progress("Trying learning rates", number + 1, NUM_RATES)
        if not math.isfinite(mean) or mean > DIVERGED * min(each for _, each in tried) + 1.0:
            break
    finite = [(loss, rate) for rate, loss in tried if math.isfinite(loss)]
    return LrSearch(PEAK_FRACTION * min(finite)[1], tuple(tried))
