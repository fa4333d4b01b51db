"""A run as a recipe meets it: the pictures, the settings, the time, and what has been decided so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from vitrail.data.augment import Augment
from vitrail.data.cache import PixelCache
from vitrail.data.loader import Loader
from vitrail.data.reader import form
from vitrail.data.table import Source, Stream
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, RunError
from vitrail.machine import num_cores
from vitrail.nn.attention.full import set_fused
from vitrail.objective.classify import Classify, class_weights
from vitrail.run.directory import check_disk_space, write_config
from vitrail.training import throughput
from vitrail.training.clock import Clock, Timing
from vitrail.training.evaluation import Outputs, infer
from vitrail.training.loop import train as run_loop
from vitrail.training.plan import make_plan, measure_training, read_plan, seconds_held_back
from vitrail.training.settings import Common, Settings
from vitrail.training.shard import put_together
from vitrail.training.splits import Splits
from vitrail.training.state import Job, Progress
from vitrail.training.throughput import Kernels
from vitrail.training.view import View
from vitrail.training.world import World, spread

T = TypeVar("T")
EVALUATION_BATCH = 64
COPIES = 12  # of the weights on the disk: three checkpoints of weights, average and two moments


class Outcome(NamedTuple):
    """What a recipe ends with."""

    model: Any
    val: Outputs
    steps: int
    story: tuple[str, ...]


@dataclass(kw_only=True)
class Task:
    """One run."""

    run: Path
    sets: Splits
    settings: Common
    new_model: Callable[..., Any]
    """The model that was asked for, or one of another `name`, with fields of its specification changed."""
    has_weights: bool
    free: bool
    """Whether the user left the model, or its size, to the recipe."""
    view: View
    world: World
    shard: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    loaders: list[Loader] = field(default_factory=list)
    """All that were made, which know what could not be read."""
    timing: Timing = field(default_factory=Timing)

    def decide(self, key: str, choose: Callable[[], T]) -> T:
        """A choice that is made once for a run, by the leader, and kept in its config.yaml."""
        chosen = self.config.setdefault("decisions", {})
        if key not in chosen:
            chosen[key] = self.world.on_rank_zero(choose)
            if self.world.is_rank_zero:
                write_config(self.run, self.config)
        return chosen[key]

    def seconds_left(self) -> float | None:
        """Of the minutes that the user has; None if the length is told otherwise."""
        if self.settings.minutes is None:
            return None
        return max(0.0, self.settings.minutes * 60 - (time.monotonic() - self.timing.started))

    def objective(self) -> Classify:
        """The loss that the settings ask for."""
        settings = self.settings
        weights = None
        if settings.class_weights:
            if isinstance(self.sets.train, Stream):
                raise DataError("class weights need counted classes.", got="shards.", hint="class_weights=false.")
            weights = class_weights(self.sets.counts)
        return Classify(
            multi_label=self.sets.multi_label,
            label_smoothing=getattr(settings, "label_smoothing", 0.0),
            weights=weights,
        )

    def loader(self, source: Source, preprocess: Preprocess, *, training: bool = False, **fields: Any) -> Loader:
        """Batches of a set, as the settings say."""
        settings, world = self.settings, self.world
        chosen: dict[str, Any] = {"batch_size": max(EVALUATION_BATCH // world.size, 1) * world.size}
        if training:
            assert isinstance(settings, Settings)
            augment = settings.augment
            step = world.size * (2 if augment.mixup or augment.cutmix else 1)
            chosen = {
                "batch_size": max(step, min(settings.batch_size, len(source)) // step * step),
                "augment": augment,
                "shuffle": True,
                "drop_last": True,
                "balanced": settings.balanced,
                "cache": self._cache(source, preprocess, augment),
            }
        made = Loader(
            source=source,
            preprocess=preprocess,
            rank=world.rank,
            world=world.size,
            workers=max(1, num_cores() // world.local_size) if settings.workers is None else settings.workers,
            policy=settings.on_error,
            **{"seed": settings.seed, **chosen, **fields},
        )
        self.loaders.append(made)
        return made

    @property
    def skipped(self) -> dict[str, str]:
        """The pictures that could not be read and were left out, with the reason."""
        return {finding.path: finding.detail for loader in self.loaders for finding in loader.skipped}

    def _cache(self, source: Source, preprocess: Preprocess, augment: Augment | None) -> PixelCache | None:
        """Room for decoded pictures, where there is something to decode."""
        encoded = isinstance(source, Stream) or isinstance(source[0].content(), bytes)
        if not self.settings.cache_gb or not encoded:
            return None
        return PixelCache(form(preprocess, augment), limit_gb=self.settings.cache_gb, outside=source.root)

    def outputs(self, model: Any, source: Source, label: str) -> Outputs:
        """What the model says to all pictures of a set, in float32 as it will be used."""
        return infer(
            model.to(self.world.device),
            self.loader(source, model.preprocess),
            self.world,
            progress=lambda done, total: self.view.progress(label, done, total),
        )

    def fit(self, model: Any) -> Progress:
        """Train a model by the loop, as the settings say, for the time that is left."""
        settings, world, val = self.settings, self.world, self.sets.val
        assert isinstance(settings, Settings)
        if world.is_rank_zero:
            weights = sum(parameter.numel() * 4 for parameter in model.parameters())
            check_disk_space(self.run, COPIES * weights)
        model.to(world.device)
        objective = self.objective().to(world.device)
        loader = self.loader(self.sets.train, model.preprocess, training=True)
        small = loader
        if settings.small_until:
            less = model.preprocess.override({"size": throughput.smaller(model.spec, settings.small_side)})
            small = self.loader(self.sets.train, less, training=True)
        plan = read_plan(self.decide("plan", lambda: self._plan(model, objective, loader, small)))
        check_batch(loader, plan["batch_size"])
        Kernels(**{name: plan[name] for name in Kernels._fields}).apply(model)
        settings = settings.override({"accumulate": plan["accumulate"], "batch_size": loader.batch_size})
        trained = spread(model, world, model.preprocess.empty_batch(1).zero_(), shard=self.shard)
        held = trained if self.shard else model
        if self.shard:
            model.cpu()  # waits there for what its parts have learned
        if plan["compile"]:
            trained = torch.compile(trained, dynamic=False)  # type: ignore[assignment]
        clock = self._clock(loader, plan)
        self.timing.planning = time.monotonic() - self.timing.data_ready
        self.view.say(plan["summary"])
        job = Job(
            run=self.run,
            model=held,
            trained=trained,
            objective=objective,
            settings=settings,
            train=loader,
            train_small=small,
            val=self.loader(val, model.preprocess, cache=self._cache(val, model.preprocess, None)),
            clock=clock,
            world=world,
            view=self.view,
            bfloat16=plan["bfloat16"],
            muon_dtype=getattr(torch, plan["muon"]),
            forecast=plan["images_per_second"],
            metric="map" if self.sets.multi_label else "top1",
        )
        progress = run_loop(job)
        self.timing.before = clock.spent
        self.timing.training += progress.training_seconds
        self.timing.evaluation += progress.evaluation_seconds
        if progress.training_seconds:
            measured = progress.step * loader.batch_size / progress.training_seconds
            self.timing.speed = {"forecast": plan["images_per_second"], "measured": round(measured, 1)}
        if self.shard:
            put_together(model, held)
        model.to(memory_format=torch.contiguous_format)
        set_fused(model, fused=True)
        return progress

    def speed_of(self, model: Any) -> float:
        """Images per second of training a model here, over all processes, whole steps counted."""
        loader = self.loader(self.sets.train, model.preprocess, training=True)
        objective = self.objective().to(self.world.device)
        model.to(self.world.device)
        measured = measure_training(model, objective, loader, self.settings, self.world, quick=True)
        return measured.cost.images_per_second(loader.batch_size // self.world.size) * self.world.size

    def _plan(self, model: Any, objective: Classify, loader: Loader, small: Loader) -> dict[str, Any]:
        """What is chosen for this model on this machine."""
        seconds = self.seconds_left()
        steps = self._num_steps(loader)
        return make_plan(
            model,
            objective,
            (loader, small, self.loader(self.sets.val, model.preprocess)),
            self.settings,
            self.world,
            seconds_of=lambda speed: seconds if seconds is not None else (steps or 0) * loader.batch_size / speed,
            say=self.view.say,
        )

    def _num_steps(self, loader: Loader) -> int | None:
        """Of a run whose length is given in steps or epochs."""
        settings = self.settings
        assert isinstance(settings, Settings)
        if settings.epochs is not None:
            return math.ceil(settings.epochs * loader.steps_per_epoch)
        return settings.steps

    def _clock(self, loader: Loader, plan: dict[str, Any]) -> Clock:
        """The clock of the loop; what follows it (validation, test, report) is measured and held back."""
        steps, left = self._num_steps(loader), self.seconds_left()
        if steps is not None:
            return Clock(steps=steps, seconds=None)
        assert left is not None, "a run has a length"
        return Clock(steps=None, seconds=max(1.0, left - seconds_held_back(plan, self.sets)))


def check_batch(loader: Loader, batch_size: int) -> None:
    """Refuse to go on with a run with so many processes that its batches cannot be shared among them evenly."""
    if loader.batch_size != batch_size:
        raise RunError(
            f"this run takes {batch_size} pictures a step, which cannot be shared evenly.",
            got=f"{loader.world} processes.",
            hint="as many processes as it began with.",
        )
