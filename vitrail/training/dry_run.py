"""Before a run: a forecast of what it will take, and a search for its learning rate. Nothing is kept."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from vitrail.data.table import Source, Stream
from vitrail.errors import TrainError
from vitrail.training import optim
from vitrail.training.plan import seconds_held_back
from vitrail.training.settings import Common, Settings
from vitrail.training.splits import Splits
from vitrail.training.task import Task

A = TypeVar("A", bound=Common)
FEW = 2  # pictures of each class
MOST = 512
NUM_RATES = 60
DECADES = (1e-3, 1e2)  # around the recipe's own rate
SMOOTH = 0.8
BLOWN = 1.5  # times the lowest loss
BELOW = 0.1  # of the rate at which the loss is lowest is a good peak


class Rates(NamedTuple):
    """The learning rates that were tried, the loss at each, and the one that suits."""

    lr: float
    tried: tuple[tuple[float, float], ...]


def one_step(settings: A) -> A:
    """The same settings for a run of one step."""
    return settings.with_length(steps=1) if isinstance(settings, Settings) else settings


def few_of(sets: Splits) -> Splits:
    """A few pictures of each class of each set."""
    train = _few(sets.train)
    val = train if sets.val is sets.train else _few(sets.val)
    return sets._replace(train=train, val=val, test=None if sets.test is None else _few(sets.test))


def _few(source: Source) -> Source:
    if isinstance(source, Stream):
        return replace(source, shards=source.chosen[:1])
    if source.starts is not None:
        return source.only(range(min(MOST, len(source))))
    rows = [np.flatnonzero(source.labels == label)[:FEW] for label in range(len(source.classes))]
    return source.only(np.sort(np.concatenate(rows))[:MOST])


def forecast(task: Task, settings: Common, sets: Splits) -> tuple[str, ...]:
    """What the whole run will take, from what one step took."""
    plan = task.config.get("decisions", {}).get("plan")
    if plan is None or not isinstance(settings, Settings):
        seconds = 2 * len(sets.train) / task.timing.speed["forecast"]
        note = (
            f"A probe of {len(sets.train):,} images: the features of each image and its mirror image take about "
            f"{seconds:,.0f} s ({task.timing.speed['forecast']:,.0f} a second). Then a linear classifier is fitted."
        )
        return (note,)
    speed, num = plan["images_per_second"], len(sets.train)
    if settings.minutes is not None:
        images = max(1.0, settings.minutes * 60 - seconds_held_back(plan, sets)) * speed
        steps = images / settings.batch_size
        length = f"{settings.minutes:g} minutes are about {steps:,.0f} steps, {images / num:,.1f} epochs"
    else:
        steps = settings.steps or math.ceil((settings.epochs or 1) * max(1, num // settings.batch_size))
        length = f"{steps:,} steps take about {steps * settings.batch_size / speed / 60:,.1f} minutes"
    parts = f", each batch in {plan['accumulate']} parts" if plan["accumulate"] > 1 else ""
    return (
        f"Learning from {num:,} pictures of {len(sets.classes)} classes, choosing by {len(sets.val):,}.",
        f"{plan['summary'][:-1]}; about {plan['gigabytes']:.2f} GiB of memory{parts}.",
        f"{length}.",
    )


def try_rates(task: Task) -> Rates:
    """Raise the learning rate step by step until the loss blows up (Smith, arXiv 1506.01186)."""
    settings = task.settings
    if not isinstance(settings, Settings):
        raise TrainError("this recipe has no learning rate.", got="a probe.", hint="--recipe finetune.")
    model = task.new_model(num_classes=len(task.sets.classes)).to(memory_format=torch.channels_last).train()
    objective = task.objective()
    low, high = (settings.lr * factor for factor in DECADES)
    optimizers = optim.make_optimizers(
        model, settings.optimizer, lr=low, weight_decay=settings.weight_decay, layer_decay=settings.layer_decay
    )
    tried: list[tuple[float, float]] = []
    mean = math.nan
    for number, batch in enumerate(task.loader(task.sets.train, model.preprocess, training=True).batches(0, NUM_RATES)):
        rate = low * (high / low) ** (number / (NUM_RATES - 1))
        optim.set_rate(optimizers, rate / low)
        model.zero_grad(set_to_none=True)
        loss = objective(model, batch.images, batch.labels).mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        mean = loss.item() if math.isnan(mean) else SMOOTH * mean + (1 - SMOOTH) * loss.item()
        tried.append((rate, mean))
        task.view.progress("Trying learning rates", number + 1, NUM_RATES)
        if not math.isfinite(mean) or mean > BLOWN * min(each for _, each in tried) + 1.0:
            break
    finite = [(loss, rate) for rate, loss in tried if math.isfinite(loss)]
    return Rates(BELOW * min(finite)[1], tuple(tried))
