"""Where the time of a training step goes: data, forward, backward, optimizer and EMA; and evaluation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from vitrail import catalogue
from vitrail.benchmark.compare import Bench, Row, hardware
from vitrail.data.find import open_data
from vitrail.data.loader import Loader
from vitrail.machine import num_cores, seconds_of
from vitrail.objective.classify import Classify
from vitrail.training import optim, throughput
from vitrail.training.ema import Ema
from vitrail.training.plan import measure_training
from vitrail.training.recipe import scratch
from vitrail.training.world import World

WHOLE = "whole step"
WARM_UP = 2  # steps


def run(
    data: str | Path | None = None,
    *,
    model: str | None = None,
    rounds: int = 10,
    progress: Callable[[int, int], None] | None = None,
) -> Bench:
    """So many real steps of the recipe `scratch`, with a learning rate of zero."""
    source = open_data(data or "digits")
    source = source.split("train") if source.split_names else source
    name = model or scratch.suggest(source)
    network = catalogue.create_model(name, num_classes=len(source.classes)).train()
    settings, world, objective = (
        scratch.Spec(steps=1),
        World(),
        Classify(label_smoothing=scratch.Spec().label_smoothing),
    )
    loader = Loader(
        source=source,
        preprocess=network.preprocess,
        batch_size=min(settings.batch_size, len(source)),
        augment=settings.augment,
        shuffle=True,
        drop_last=True,
        workers=num_cores(),
    )
    kernels, cost, muon = measure_training(network, objective, loader, settings, world)
    optimizers = optim.make_optimizers(
        network, settings.optimizer, lr=0.0, weight_decay=settings.weight_decay, muon_dtype=getattr(torch, muon)
    )
    average = Ema(network, settings.ema)
    parts: dict[str, list[float]] = {part: [] for part in ("data", "forward", "backward", "optimizer", "EMA", WHOLE)}
    batches = loader.batches()
    for number in range(rounds + WARM_UP):
        started = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - started
        forward, backward = throughput.step_seconds(
            network, objective, batch.images, batch.labels, world, bfloat16=kernels.bfloat16
        )
        moved = seconds_of(lambda: _update(network, optimizers, settings.clip))
        averaged = seconds_of(lambda: average.update(0))
        network.zero_grad(set_to_none=True)
        times = (waited, forward, backward, moved, averaged, time.perf_counter() - started)
        if number >= WARM_UP:
            for part, seconds in zip(parts.values(), times, strict=True):
                part.append(seconds)
        if progress is not None:
            progress(number + 1, rounds + WARM_UP)
    images = torch.cat([batch.images for batch in islice(loader.batches(), 1)])
    parts["evaluation of a batch"] = [
        throughput.forward_seconds(network, images, world) * loader.batch_size for _ in range(min(3, rounds))
    ]
    whole = statistics.median(parts[WHOLE])
    rows = tuple(
        Row(
            name=part,
            value=1000 * statistics.median(values),
            unit="ms",
            ratio=statistics.median(values) / whole,
            ratio_low=min(values) / whole,
            ratio_high=max(values) / whole,
            values=tuple(round(1000 * value, 3) for value in values),
        )
        for part, values in parts.items()
    )
    setting = {
        "data": source.origin,
        "images": len(source),
        "model": name,
        "batch_size": loader.batch_size,
        **kernels._asdict(),
        "muon": muon,
        "forecast_images_per_second": round(cost.images_per_second(loader.batch_size), 1),
        "measured_images_per_second": round(loader.batch_size / whole, 1),
        "rounds": rounds,
        "seed": 0,
    }
    return Bench("training", setting, hardware(), WHOLE, rows, ())


def _update(model: nn.Module, optimizers: list[torch.optim.Optimizer], clip: float) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
    for optimizer in optimizers:
        optimizer.step()
