"""A training run as its recipe sees it: the data, the settings, the time left, and the decisions made so far."""

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
from vitrail.training.plan import make_plan, measure_training, read_plan, reserved_seconds
from vitrail.training.run_progress import RunProgress
from vitrail.training.settings import CommonSettings, Settings
from vitrail.training.shard import gather_into
from vitrail.training.splits import Splits
from vitrail.training.state import LoopJob
from vitrail.training.throughput import Kernels
from vitrail.training.view import View
from vitrail.training.world import World, distribute

T = TypeVar("T")
EVALUATION_BATCH_SIZE = 64
NUM_DISK_COPIES = 12  # of the weights: three checkpoints of weights, EMA and two moments


class Outcome(NamedTuple):
    """The result of a recipe."""

    model: Any
    val: Outputs
    steps: int
    notes: tuple[str, ...]


@dataclass(kw_only=True)
class Task:
    """One training run."""

    run: Path
    splits: Splits
    settings: CommonSettings
    new_model: Callable[..., Any]
    """Creates the requested model, or another by `name`; further arguments override fields of its spec."""
    has_weights: bool
    can_choose_model: bool
    """Whether the user left the choice of model and image size to the recipe."""
    view: View
    world: World
    shard: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    loaders: list[Loader] = field(default_factory=list)
    """All loaders created so far; each lists the images that it skipped."""
    timing: Timing = field(default_factory=Timing)

    def decide(self, key: str, choose: Callable[[], T]) -> T:
        """Make a choice once per run, on rank 0, and store it in config.yaml."""
        decisions = self.config.setdefault("decisions", {})
        if key not in decisions:
            decisions[key] = self.world.on_rank_zero(choose)
            if self.world.is_rank_zero:
                write_config(self.run, self.config)
        return decisions[key]

    def seconds_left(self) -> float | None:
        """The seconds left of the run's `minutes`; None if its length is in steps or epochs."""
        if self.settings.minutes is None:
            return None
        return max(0.0, self.settings.minutes * 60 - (time.monotonic() - self.timing.started))

    def make_objective(self) -> Classify:
        """Create the loss function."""
        settings = self.settings
        weights = None
        if settings.class_weights:
            if isinstance(self.splits.train, Stream):
                raise DataError("class weights need counted classes.", got="shards.", hint="class_weights=false.")
            weights = class_weights(self.splits.counts)
        return Classify(
            multi_label=self.splits.multi_label,
            label_smoothing=getattr(settings, "label_smoothing", 0.0),
            weights=weights,
        )

    def make_loader(self, source: Source, preprocess: Preprocess, *, training: bool = False, **fields: Any) -> Loader:
        """Create a loader with the settings of the run."""
        settings, world = self.settings, self.world
        options: dict[str, Any] = {"batch_size": max(EVALUATION_BATCH_SIZE // world.size, 1) * world.size}
        if training:
            assert isinstance(settings, Settings)
            augment = settings.augment
            multiple = world.size * (2 if augment.mixup or augment.cutmix else 1)
            options = {
                "batch_size": max(multiple, min(settings.batch_size, len(source)) // multiple * multiple),
                "augment": augment,
                "shuffle": True,
                "drop_last": True,
                "balanced": settings.balanced,
                "cache": self._make_cache(source, preprocess, augment),
            }
        loader = Loader(
            source=source,
            preprocess=preprocess,
            rank=world.rank,
            world=world.size,
            workers=max(1, num_cores() // world.local_size) if settings.workers is None else settings.workers,
            policy=settings.on_error,
            **{"seed": settings.seed, **options, **fields},
        )
        self.loaders.append(loader)
        return loader

    @property
    def skipped(self) -> dict[str, str]:
        """The images that were skipped because they cannot be read, with the reason."""
        return {finding.path: finding.detail for loader in self.loaders for finding in loader.skipped}

    def _make_cache(self, source: Source, preprocess: Preprocess, augment: Augment | None) -> PixelCache | None:
        """Create a cache of decoded images; None if there is nothing to decode."""
        encoded = isinstance(source, Stream) or isinstance(source[0].content(), bytes)
        if not self.settings.cache_gb or not encoded:
            return None
        return PixelCache(form(preprocess, augment), limit_gb=self.settings.cache_gb, outside=source.root)

    def infer(self, model: Any, source: Source, label: str) -> Outputs:
        """Predict all images of a source in float32, as the finished model will."""
        return infer(
            model.to(self.world.device),
            self.make_loader(source, model.preprocess),
            self.world,
            progress=lambda done, total: self.view.progress(label, done, total),
        )

    def fit(self, model: Any) -> RunProgress:
        """Train a model with the training loop for the time that is left."""
        settings, world, val = self.settings, self.world, self.splits.val
        assert isinstance(settings, Settings)
        if world.is_rank_zero:
            weights = sum(parameter.numel() * 4 for parameter in model.parameters())
            check_disk_space(self.run, NUM_DISK_COPIES * weights)
        model.to(world.device)
        objective = self.make_objective().to(world.device)
        loader = self.make_loader(self.splits.train, model.preprocess, training=True)
        small = loader
        if settings.small_until:
            small_preprocess = model.preprocess.override(
                {"size": throughput.scale_image_size(model.spec, settings.small_side)}
            )
            small = self.make_loader(self.splits.train, small_preprocess, training=True)
        plan = read_plan(self.decide("plan", lambda: self._make_plan(model, objective, loader, small)))
        check_batch_size(loader, plan["batch_size"])
        Kernels(**{name: plan[name] for name in Kernels._fields}).apply(model)
        settings = settings.override({"accumulate": plan["accumulate"], "batch_size": loader.batch_size})
        wrapped_model = distribute(model, world, model.preprocess.empty_batch(1).zero_(), shard=self.shard)
        updated_model = wrapped_model if self.shard else model
        if self.shard:
            model.cpu()  # until the trained shards are gathered into it
        if plan["compile"]:
            wrapped_model = torch.compile(wrapped_model, dynamic=False)  # type: ignore[assignment]
        clock = self._make_clock(loader, plan)
        self.timing.planning = time.monotonic() - self.timing.data_ready
        self.view.say(plan["summary"])
        job = LoopJob(
            run=self.run,
            model=updated_model,
            wrapped_model=wrapped_model,
            objective=objective,
            settings=settings,
            train_loader=loader,
            small_train_loader=small,
            val_loader=self.make_loader(val, model.preprocess, cache=self._make_cache(val, model.preprocess, None)),
            clock=clock,
            world=world,
            view=self.view,
            bfloat16=plan["bfloat16"],
            muon_dtype=getattr(torch, plan["muon"]),
            forecast=plan["images_per_second"],
            evaluation_seconds=len(val) / plan["evaluated_per_second"],
            metric="map" if self.splits.multi_label else "top1",
        )
        progress = run_loop(job)
        self.timing.seconds_before = clock.spent
        self.timing.training += progress.training_seconds
        self.timing.evaluation += progress.evaluation_seconds
        if progress.training_seconds:
            measured = progress.step * loader.batch_size / progress.training_seconds
            self.timing.speed = {"forecast": plan["images_per_second"], "measured": round(measured, 1)}
        if self.shard:
            gather_into(model, updated_model)
        model.to(memory_format=torch.contiguous_format)
        set_fused(model, fused=True)
        return progress

    def measure_speed(self, model: Any) -> float:
        """Measure training speed in images per second over all processes, counting whole steps."""
        loader = self.make_loader(self.splits.train, model.preprocess, training=True)
        objective = self.make_objective().to(self.world.device)
        model.to(self.world.device)
        measurement = measure_training(model, objective, loader, self.settings, self.world)
        return measurement.cost.images_per_second(loader.batch_size // self.world.size) * self.world.size

    def _make_plan(self, model: Any, objective: Classify, loader: Loader, small: Loader) -> dict[str, Any]:
        """Plan the training of this model on this machine."""
        seconds = self.seconds_left()
        steps = self._num_steps(loader)
        return make_plan(
            model,
            objective,
            (loader, small, self.make_loader(self.splits.val, model.preprocess)),
            self.settings,
            self.world,
            run_seconds=lambda speed: seconds if seconds is not None else (steps or 0) * loader.batch_size / speed,
            say=self.view.say,
        )

    def _num_steps(self, loader: Loader) -> int | None:
        """The length of a run in steps; None if it is in minutes."""
        settings = self.settings
        assert isinstance(settings, Settings)
        if settings.epochs is not None:
            return math.ceil(settings.epochs * loader.steps_per_epoch)
        return settings.steps

    def _make_clock(self, loader: Loader, plan: dict[str, Any]) -> Clock:
        """Create the loop's clock; the time for what follows (validation, test, report) is reserved."""
        steps, left = self._num_steps(loader), self.seconds_left()
        if steps is not None:
            return Clock(steps=steps, seconds=None)
        assert left is not None, "a run has a length"
        return Clock(steps=None, seconds=max(1.0, left - reserved_seconds(plan, self.splits)))


def check_batch_size(loader: Loader, batch_size: int) -> None:
    """Refuse to resume a run whose batches cannot be split evenly over the processes."""
    if loader.batch_size != batch_size:
        raise RunError(
            f"this run has {batch_size} images per batch, which cannot be split evenly.",
            got=f"{loader.world} processes.",
            hint="the number of processes that it started with.",
        )
