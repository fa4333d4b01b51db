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
from vitrail.data.loader import Loader, num_cores
from vitrail.data.reader import form
from vitrail.data.table import Source, Stream
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, RunError
from vitrail.objective.classify import Classify, class_weights
from vitrail.run.directory import check_disk_space, write_config
from vitrail.training import throughput
from vitrail.training.clock import Clock
from vitrail.training.evaluation import Outputs, infer
from vitrail.training.loop import train as run_loop
from vitrail.training.settings import Common, Settings
from vitrail.training.shard import put_together
from vitrail.training.splits import Splits
from vitrail.training.state import Job, Progress
from vitrail.training.throughput import Cost
from vitrail.training.view import View
from vitrail.training.world import World, spread

T = TypeVar("T")
EVALUATION_BATCH = 64
FORWARD_SPEED = 1.5  # of a float32 evaluation, as a multiple of the speed of training
CLOSING = 3.0  # seconds for writing the artefact and the report
EXPLAINED = 120  # pictures that could be evaluated in the time of the report's maps
LONG = 1200.0  # seconds of training from which torch.compile is tried
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
    started: float = field(default_factory=time.monotonic)
    loaders: list[Loader] = field(default_factory=list)
    """All that were made, which know what could not be read."""
    earlier: float = 0.0
    """Seconds that were spent before an interruption."""

    def decide(self, key: str, choose: Callable[[], T]) -> T:
        """A choice that is made once for a run, by the leader, and kept in its config.yaml."""
        chosen = self.config.setdefault("chosen", {})
        if key not in chosen:
            chosen[key] = self.world.on_rank_zero(choose)
            if self.world.is_rank_zero:
                write_config(self.run, self.config)
        return chosen[key]

    def seconds_left(self) -> float | None:
        """Of the minutes that the user has; None if the length is told otherwise."""
        if self.settings.minutes is None:
            return None
        return max(0.0, self.settings.minutes * 60 - (time.monotonic() - self.started))

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
        model.to(world.device, memory_format=torch.channels_last)
        objective = self.objective().to(world.device)
        loader = self.loader(self.sets.train, model.preprocess, training=True)
        small = loader
        if settings.small_until:
            less = model.preprocess.override({"size": throughput.smaller(model.spec, settings.small_side)})
            small = self.loader(self.sets.train, less, training=True)
        plan = self.decide("fit", lambda: self._plan(model, objective, loader))
        check_batch(loader, plan["batch_size"])
        settings = settings.override({"accumulate": plan["accumulate"], "batch_size": loader.batch_size})
        trained = spread(model, world, model.preprocess.empty_batch(1).zero_(), shard=self.shard)
        held = trained if self.shard else model
        if self.shard:
            model.cpu()  # waits there for what its parts have learned
        if plan["compile"]:
            trained = torch.compile(trained, dynamic=False)  # type: ignore[assignment]
        clock = self._clock(loader, plan)
        self.view.say(plan["told"])
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
            metric="map" if self.sets.multi_label else "top1",
        )
        progress = run_loop(job)
        self.earlier = clock.spent
        if self.shard:
            put_together(model, held)
        model.to(memory_format=torch.contiguous_format)
        return progress

    def speed_of(self, model: Any) -> float:
        """The pictures a second that a model learns from here, over all processes."""
        model.to(self.world.device, memory_format=torch.channels_last)
        loader = self.loader(self.sets.train, model.preprocess, training=True)
        _, cost = self._measured(model, self.objective().to(self.world.device), loader)
        return cost.images_per_second * self.world.size

    def _measured(self, model: Any, objective: Classify, loader: Loader) -> tuple[bool, Cost]:
        """Whether to multiply in bfloat16, and what a picture then costs."""
        settings = self.settings
        assert isinstance(settings, Settings)
        batch = next(loader.batches())

        def cost_of(bfloat16: bool) -> Cost:
            return throughput.measure(model, objective, batch.images, batch.labels, self.world, bfloat16=bfloat16)

        if settings.precision == "auto":
            return throughput.choose_precision(cost_of, self.world)
        bfloat16 = settings.precision == "bfloat16"
        return bfloat16, cost_of(bfloat16)

    def _plan(self, model: Any, objective: Classify, loader: Loader) -> dict[str, Any]:
        """Measure a few steps, and choose the number format and the parts of a batch."""
        settings = self.settings
        assert isinstance(settings, Settings)
        bfloat16, cost = self._measured(model, objective, loader)
        parts = settings.accumulate or throughput.parts_that_fit(model, cost, loader.batch_size, self.world)
        speed = cost.images_per_second * self.world.size
        return {
            "bfloat16": bfloat16,
            "batch_size": loader.batch_size,
            "accumulate": parts,
            "compile": settings.compile == "on"
            or self._compiling_pays(model, objective, loader, bfloat16, parts, speed),
            "images_per_second": round(speed, 1),
            "gigabytes": round(
                throughput.needed_bytes(model, cost, loader.batch_size // self.world.size / parts) / 2**30, 3
            ),
            "told": f"Training in {'bfloat16' if bfloat16 else 'float32'}, about {speed:,.0f} pictures a second"
            + (f", each batch in {parts} parts" if parts > 1 else "")
            + ".",
        }

    def _compiling_pays(
        self, model: Any, objective: Classify, loader: Loader, bfloat16: bool, parts: int, speed: float
    ) -> bool:
        """Whether torch.compile is asked to be tried, the run is long enough to earn it back, and it is faster."""
        settings, world = self.settings, self.world
        assert isinstance(settings, Settings)
        seconds = self.seconds_left() or (self._num_steps(loader) or 0) * loader.batch_size / speed
        if settings.compile != "auto" or world.size > 1 or seconds < LONG:
            return False
        self.view.say("Trying torch.compile, since the run is long.")
        batch, num = next(loader.batches()), loader.batch_size // parts
        return throughput.compiling_pays(
            model, objective, batch.images[:num], batch.labels[:num], world, bfloat16=bfloat16
        )

    def _num_steps(self, loader: Loader) -> int | None:
        """Of a run whose length is told in steps or epochs."""
        settings = self.settings
        assert isinstance(settings, Settings)
        if settings.epochs is not None:
            return math.ceil(settings.epochs * loader.steps_per_epoch)
        return settings.steps

    def _clock(self, loader: Loader, plan: dict[str, Any]) -> Clock:
        steps, left = self._num_steps(loader), self.seconds_left()
        if steps is not None:
            return Clock(steps=steps, seconds=None)
        assert left is not None, "a run has a length"
        judged = EXPLAINED + len(self.sets.val) * 2 + (len(self.sets.test) if self.sets.test is not None else 0)
        reserve = CLOSING + judged / (FORWARD_SPEED * plan["images_per_second"])
        return Clock(steps=None, seconds=max(1.0, left - reserve))


def check_batch(loader: Loader, batch_size: int) -> None:
    """Refuse to go on with a run with so many processes that its batches cannot be shared among them evenly."""
    if loader.batch_size != batch_size:
        raise RunError(
            f"this run takes {batch_size} pictures a step, which cannot be shared evenly.",
            got=f"{loader.world} processes.",
            hint="as many processes as it began with.",
        )
