"""A training run as its recipe sees it: the data, the settings, the time left, and the decisions made so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from vitrail.batch import Fields, first_rows
from vitrail.contract import Model, Objective
from vitrail.data.loader import Loader
from vitrail.data.preparation import Preparation
from vitrail.data.table import Source
from vitrail.errors import RunError
from vitrail.machine import num_cores
from vitrail.nn.attention.full import set_fused
from vitrail.run.directory import check_disk_space, stage_dir, write_config
from vitrail.training.clock import Clock, Timing
from vitrail.training.evaluation import Answers, infer
from vitrail.training.learner import Learner
from vitrail.training.loop import train as run_loop
from vitrail.training.plan import (
    Measurement,
    check_coupled,
    check_parts,
    make_plan,
    measure_training,
    read_plan,
    reserved_seconds,
)
from vitrail.training.run_progress import RunProgress
from vitrail.training.settings import CommonSettings, Settings
from vitrail.training.shard import gather_into
from vitrail.training.splits import Splits
from vitrail.training.state import LoopJob
from vitrail.training.throughput import Kernels, time_data
from vitrail.training.view import View
from vitrail.training.world import World, connect, distribute

T = TypeVar("T")
EVALUATION_BATCH_SIZE = 64
FINISHED = "finished"  # the decision that holds the last step of a stage
NUM_DISK_COPIES = 12  # of the weights: three checkpoints of weights, EMA and two moments


class Outcome(NamedTuple):
    """The result of a recipe."""

    model: Model
    val: Answers
    steps: int
    notes: tuple[str, ...]
    objective: Objective | None = None
    """What was trained with the model, if the end of the run needs its parameters."""


class Kind(Protocol):
    """What a run needs to know about its kind (`vitrail/kind`): how to score, and how to prepare data for a model."""

    NOUN: str
    """What the samples are called in messages and files."""

    def new_model(self, task: Task) -> Model:
        """Create the requested model with the outputs that the data needs."""

    def new_objective(self, task: Task, model: Model | None = None) -> Objective:
        """Create the objective of a recipe that does not bring its own; one with parameters is made for a model."""

    def answer_cost(self, splits: Splits) -> float:
        """What the final answers cost besides their scores, in evaluations of a sample: translations are searched."""

    def preparation(self, task: Task, model: Model, *, training: bool) -> Preparation:
        """How the items of a source become the input of this model."""


def no_answer_cost(splits: Splits) -> float:  # noqa: ARG001 - whatever the data
    """For kinds whose final answers are those of the last evaluation."""
    return 0.0


@dataclass(kw_only=True)
class Task:
    """One training run, or one stage of it."""

    run: Path
    kind: Kind
    splits: Splits
    settings: CommonSettings
    new_model: Callable[..., Model]
    """Creates the requested model, or another by `name`; further arguments override fields of its spec."""
    has_weights: bool
    can_choose_model: bool
    """Whether the user left the choice of model and input size to the recipe."""
    view: View
    world: World
    shard: bool = False
    teacher: Any = None
    """What the recipe learns from, besides labels."""
    unlabelled: Source | None = None
    """Further samples without labels."""
    config: dict[str, Any] = field(default_factory=dict)
    loaders: list[Loader] = field(default_factory=list)
    """All loaders created so far; each lists the items that it skipped."""
    timing: Timing = field(default_factory=Timing)
    stages: tuple[str, ...] = ()
    """The names of the stages from the run to this one; empty for the run itself."""
    until: float = 1.0
    """The fraction of the run's minutes at which this stage ends."""
    trained: set[tuple[str, ...]] = field(default_factory=set)
    """The stages in which a model was trained."""
    measured: dict[tuple[Any, ...], Measurement] = field(default_factory=dict)
    """What was measured of models, so that what was measured for a choice need not be measured again for the plan."""

    def stage(self, name: str, *, until: float = 1.0, **fields: Any) -> Task:
        """Return a stage of the run, with its own checkpoints, metrics and decisions; `fields` replace others.

        A recipe that trains several models gives each a stage, which ends at the fraction `until` of the run's minutes.
        Whatever moment the run is killed at, the same command goes through the finished stages without training and
        resumes the one that was interrupted.
        """
        return replace(self, stages=(*self.stages, name), until=until, **fields)

    @property
    def folder(self) -> Path:
        """The folder of this stage, in which its checkpoints and metrics are."""
        return stage_dir(self.run, self.stages)

    @property
    def decisions(self) -> dict[str, Any]:
        """Everything chosen automatically in this stage, as stored in config.yaml."""
        if not self.stages:
            return self.config.setdefault("decisions", {})
        return self.config.setdefault("stages", {}).setdefault("/".join(self.stages), {})

    def decide(self, key: str, choose: Callable[[], T]) -> T:
        """Make a choice once per run, on rank 0, and store it in config.yaml."""
        decisions = self.decisions
        if key not in decisions:
            decisions[key] = self.world.on_rank_zero(choose)
            if self.world.is_rank_zero:
                write_config(self.run, self.config)
        return decisions[key]

    def seconds_left(self) -> float | None:
        """The seconds left of the run's `minutes` for this stage; None if its length is in steps or epochs."""
        if self.settings.minutes is None:
            return None
        return max(0.0, self.settings.minutes * 60 * self.until - self.timing.total)

    def make_loader(
        self, source: Source, prepare: Preparation, *, training: bool = False, cached: bool = False
    ) -> Loader:
        """Create a loader with the settings of the run."""
        settings, world = self.settings, self.world
        options: dict[str, Any] = {"batch_size": max(EVALUATION_BATCH_SIZE // world.size, 1) * world.size}
        if training:
            assert isinstance(settings, Settings)
            multiple = world.size * prepare.group
            options = {
                "batch_size": max(multiple, min(settings.batch_size, len(source)) // multiple * multiple),
                "shuffle": True,
                "drop_last": True,
                "balanced": settings.balanced,
            }
        loader = Loader(
            source=source,
            prepare=prepare.cached(source, settings.cache_gb) if cached else prepare,
            rank=world.rank,
            world=world.size,
            workers=max(1, num_cores() // world.local_size) if settings.workers is None else settings.workers,
            policy=settings.on_error,
            seed=settings.seed,
            **options,
        )
        self.loaders.append(loader)
        return loader

    @property
    def skipped(self) -> dict[str, str]:
        """The items that were skipped because they cannot be read, with the reason."""
        return {finding.path: finding.detail for loader in self.loaders for finding in loader.skipped}

    def infer(self, model: Model, source: Source, label: str, objective: Objective | None = None) -> Answers:
        """Compute the answers for all items of a source in float32, as the finished model will."""
        return infer(
            Learner(model, objective or self.kind.new_objective(self, model)).to(self.world.device),
            self.make_loader(source, self.kind.preparation(self, model, training=False)),
            self.world,
            progress=lambda done, total: self.view.progress(label, done, total),
        )

    def fit(self, model: Model, objective: Objective | None = None) -> RunProgress:
        """Train a model with the training loop for the time that is left; once per stage."""
        assert self.stages not in self.trained, "a stage trains one model: use task.stage(name) for another"
        self.trained.add(self.stages)
        settings, world, val = self.settings, self.world, self.splits.val
        assert isinstance(settings, Settings)
        learner = Learner(model, objective or self.kind.new_objective(self, model))
        check_parts(learner, settings.accumulate or 1)
        check_coupled(learner, settings, world)
        if world.is_rank_zero:
            weights = sum(parameter.numel() * 4 for parameter in learner.parameters())
            check_disk_space(self.run, NUM_DISK_COPIES * weights)
            self.folder.mkdir(parents=True, exist_ok=True)
        learner.to(world.device)
        loader, small = self._training_loaders(model)
        plan = read_plan(self.decide("plan", lambda: self._make_plan(model, learner, loader, small)), self.kind.NOUN)
        check_batch_size(loader, plan["batch_size"])
        Kernels(**{name: plan[name] for name in Kernels._fields}).apply(learner)
        settings = settings.override({"accumulate": plan["accumulate"], "batch_size": loader.batch_size})
        wrapped = distribute(learner, world, lambda: _example(loader), shard=self.shard)
        updated = wrapped if isinstance(wrapped, Learner) else learner  # FSDP2 trains a sharded copy
        if self.shard:
            learner.cpu()  # until the trained shards are gathered into it
        if plan["compile"]:
            wrapped = torch.compile(wrapped, dynamic=False)  # type: ignore[assignment]
        clock = self._make_clock(loader, plan)
        self.timing.planning = time.monotonic() - self.timing.data_ready - self.timing.training - self.timing.evaluation
        self.view.say(plan["summary"])
        job = LoopJob(
            run=self.folder,
            learner=updated,
            wrapped=wrapped,
            settings=settings,
            train_loader=loader,
            small_train_loader=small,
            val_loader=self.make_loader(val, self.kind.preparation(self, model, training=False), cached=True),
            clock=clock,
            world=world,
            view=self.view,
            bfloat16=plan["bfloat16"],
            muon_dtype=getattr(torch, plan["muon"]),
            forecast=plan["samples_per_second"],
            evaluation_seconds=len(val) / plan["evaluated_per_second"],
            noun=self.kind.NOUN,
        )
        progress = run_loop(job)
        self.decide(FINISHED, lambda: progress.step)  # so that a run resumed in a later stage trains this one no more
        connect(learner.objective, World())
        self.timing.add_stage(clock, progress, loader.batch_size, plan["samples_per_second"])
        if self.shard:
            gather_into(learner, updated)
        learner.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        set_fused(learner, fused=True)
        return progress

    def _training_loaders(self, model: Model) -> tuple[Loader, Loader]:
        """The training loader, and the one of smaller inputs for the first part of the run."""
        settings = self.settings
        assert isinstance(settings, Settings)
        prepare = self.kind.preparation(self, model, training=True)
        loader = self.make_loader(self.splits.train, prepare, training=True, cached=True)
        if not settings.small_until:
            return loader, loader
        spec = model.spec
        assert hasattr(spec, "layout"), "a model that starts at a lower resolution has a grid of cells"
        reduced = prepare.reduced(settings.small_side, spec.layout.grid)
        if reduced is prepare:
            return loader, loader
        return loader, self.make_loader(self.splits.train, reduced, training=True, cached=True)

    def measure_speed(self, model: Model, objective: Objective | None = None) -> float:
        """Measure training speed in samples per second over all processes, counting whole steps."""
        learner = Learner(model, objective or self.kind.new_objective(self, model)).to(self.world.device)
        prepare = self.kind.preparation(self, model, training=True)
        loader = self.make_loader(self.splits.train, prepare, training=True, cached=True)
        cost = self._measure(learner, loader).cost
        return cost.samples_per_second(loader.batch_size // self.world.size) * self.world.size

    def _measure(self, learner: Learner, loader: Loader) -> Measurement:
        """Measure the training of a learner once; the loader is timed again, whose augmentation may have changed."""
        settings = self.settings
        assert isinstance(settings, Settings)
        num_trained = sum(parameter.numel() for parameter in learner.parameters() if parameter.requires_grad)
        key = (
            *(repr(learner.model.spec), type(learner.objective).__name__, num_trained),
            *(len(loader.source), loader.batch_size, settings.optimizer, settings.sam, settings.precision),
        )
        if key in self.measured:
            measurement = self.measured[key]
            return measurement._replace(cost=measurement.cost._replace(data=time_data(loader)))
        self.measured[key] = measure_training(learner, loader, settings, self.world)
        return self.measured[key]

    def _make_plan(self, model: Model, learner: Learner, loader: Loader, small: Loader) -> dict[str, Any]:
        """Plan the training on this machine."""
        seconds = self.seconds_left()
        steps = self._num_steps(loader)
        val = self.make_loader(self.splits.val, self.kind.preparation(self, model, training=False))
        return make_plan(
            learner,
            self._measure(learner, loader),
            (loader, small, val),
            self.settings,
            self.world,
            run_seconds=lambda speed: seconds if seconds is not None else (steps or 0) * loader.batch_size / speed,
            say=self.view.say,
            noun=self.kind.NOUN,
        )

    def _num_steps(self, loader: Loader) -> int | None:
        """The length of a run in steps; None if it is in minutes."""
        settings = self.settings
        assert isinstance(settings, Settings)
        if settings.epochs is not None:
            return math.ceil(settings.epochs * loader.steps_per_epoch)
        return settings.steps

    def _make_clock(self, loader: Loader, plan: dict[str, Any]) -> Clock:
        """Create the loop's clock; the time for what follows the last stage (validation, test, report) is reserved."""
        steps, left = self.decisions.get(FINISHED, self._num_steps(loader)), self.seconds_left()
        if steps is not None:
            return Clock(steps=steps, seconds=None)
        assert left is not None, "a run has a length"
        reserved = reserved_seconds(plan, self.splits, self.kind.answer_cost(self.splits)) if self.until == 1.0 else 0.0
        return Clock(steps=None, seconds=max(1.0, left - reserved))


def _example(loader: Loader) -> Fields:
    """The fields of one sample: a whole batch may not fit in memory."""
    batches = loader.batches()
    batch = next(batches)
    batches.close()  # type: ignore[attr-defined]
    return first_rows(batch.fields, 1)


def check_batch_size(loader: Loader, batch_size: int) -> None:
    """Refuse to resume a run whose batches cannot be split evenly over the processes."""
    if loader.batch_size != batch_size:
        raise RunError(
            f"this run has {batch_size} samples per batch, which cannot be split evenly.",
            got=f"{loader.world} processes.",
            hint="the number of processes that it started with.",
        )
