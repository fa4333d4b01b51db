"""Where a run stands: what its checkpoints hold, how it is judged, saved, and taken back."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.data.loader import Batch, Loader
from vitrail.errors import TrainError
from vitrail.objective.classify import Classify
from vitrail.run import checkpoint as kept
from vitrail.run.checkpoint import Checkpoint
from vitrail.run.directory import CHECKPOINTS, METRICS, TIMING, Lines
from vitrail.train import optim, shard
from vitrail.train.average import Average
from vitrail.train.clock import Clock
from vitrail.train.events import Events
from vitrail.train.guard import Guard
from vitrail.train.judge import Score, outputs_of, score_of
from vitrail.train.settings import Settings
from vitrail.train.view import Moment, View
from vitrail.train.world import World

BRAKE = 0.1  # by which the learning rate is multiplied when the guard goes back
MAX_RETURNS = 3
SAVE_SECONDS = 300.0
NUM_EVALUATIONS = 10  # in a run, if not told
EVALUATION_SHARE = 0.05  # of the time, at most
LOG_EVERY = 20  # steps
SHOWN_FILES = 3


@dataclass(kw_only=True)
class Job:
    """All that one run of the loop needs."""

    run: Path
    model: Any
    trained: nn.Module
    """The model as the processes train it together; the model itself if there is one process."""
    objective: Classify
    settings: Settings
    train: dict[int | None, Loader]
    """The loader of the small pictures that the run begins with, if it does, and (None) of the model's own size."""
    val: Loader
    clock: Clock
    world: World
    view: View
    bfloat16: bool = False
    metric: str = "top1"

    def done(self, step: int) -> float:
        """The share of the run that is over, the same for all processes: the leader has the clock."""
        done = self.clock.done(step)
        if self.world.size == 1 or self.clock.steps is not None:
            return done
        return self.world.add_up(done if self.world.leads else 0.0)[0]

    def size(self, done: float) -> int | None:
        """The size of the pictures at this point of the run."""
        return self.settings.small_size if done < self.settings.small_until else None


@dataclass(kw_only=True)
class Progress:
    """The numbers of a run that its next step depends on, all of them in checkpoints."""

    step: int = 0
    best: tuple[float, float, int] | None = None
    best_step: int = 0
    judged_step: int = -1
    stale: int = 0
    returns: int = 0
    brake: float = 1.0
    loss_sum: float = 0.0
    """Of the steps since the last line of metrics."""
    num_losses: int = 0
    guard: dict[str, list[float]] = field(default_factory=dict)
    metrics_bytes: int = 0
    seconds: float = 0.0
    judged_seconds: float = 0.0


class State:
    """The parts of a run that change: weights, optimizers, average, guard, files, and `now`, where it stands."""

    def __init__(self, job: Job) -> None:
        settings = job.settings
        self.job, self.now, self.guard = job, Progress(), Guard()
        self.folder = job.run / CHECKPOINTS
        self.optimizers = optim.make_optimizers(
            job.model,
            settings.optimizer,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            layer_decay=settings.layer_decay,
        )
        self.average = Average(job.model, settings.ema) if settings.ema else None
        found = kept.newest(self.folder) if job.world.leads and self.folder.is_dir() else None
        found = job.world.share(found)
        if found is not None:
            self._restore(found[1])
            job.clock.go_back(self.now.seconds)
            job.view.say(f"Going on from step {self.now.step:,}.")
        self.metrics = Lines(job.run / METRICS, self.now.metrics_bytes) if job.world.leads else None
        self.timing = Lines(job.run / TIMING, None if found else 0) if job.world.leads else None
        self.events = Events(job.run) if settings.tensorboard and job.world.leads else None
        self.evaluation_seconds = 0.0
        self.saved_at = self.shown_at = time.monotonic()
        self.shown_step = self.now.step
        if found is None:  # so that there is something to go back to, whatever happens
            self.save()

    def take_step(self, loss: float) -> None:
        """Move the weights."""
        for optimizer in self.optimizers:
            optimizer.step()
        self.now.step += 1
        if self.average is not None:
            self.average.update(self.now.step)
        self.now.loss_sum += loss
        self.now.num_losses += 1

    def show(self) -> None:
        """Tell how things stand, now and then, and write a line of metrics every twenty steps."""
        now, job = self.now, self.job
        if now.step % LOG_EVERY == 0:
            self._write(loss=self._mean_loss(), lr=self.lr)
        seconds = time.monotonic() - self.shown_at
        if seconds < 0.5 and now.step > 1:
            return
        speed = (now.step - self.shown_step) * job.settings.batch_size / max(seconds, 1e-9)
        done, elapsed = job.clock.done(now.step), job.clock.elapsed
        left = job.clock.seconds - elapsed if job.clock.seconds else elapsed * (1 - done) / max(done, 1e-9)
        loss = now.loss_sum / max(1, now.num_losses) if now.num_losses else math.nan
        job.view.show(Moment(now.step, done, self.epoch, loss, self.lr, speed, max(0.0, left)))
        if self.timing is not None:
            self.timing.add(step=now.step, seconds=round(elapsed, 3), images_per_second=round(speed, 2))
        self.shown_at, self.shown_step = time.monotonic(), now.step

    @property
    def lr(self) -> float:
        """The learning rate of the group that learns fastest."""
        return max(group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups)

    @property
    def epoch(self) -> float:
        """How often the data has been seen."""
        return self.now.step / self.job.train[None].steps_per_epoch

    @property
    def tired(self) -> bool:
        """Whether the score has not become better for too long."""
        patience = self.job.settings.patience
        return patience is not None and self.now.stale >= patience

    @property
    def due_to_judge(self) -> bool:
        """Whether it is time to look at the validation pictures; the end is judged by itself."""
        settings, clock = self.job.settings, self.job.clock
        if settings.eval_every is not None:
            return self.now.step % settings.eval_every == 0
        if clock.steps is not None:
            return self.now.step % math.ceil(clock.steps / NUM_EVALUATIONS) == 0
        assert clock.seconds is not None
        pause = max(clock.seconds / NUM_EVALUATIONS, self.evaluation_seconds / EVALUATION_SHARE)
        due = clock.elapsed - self.now.judged_seconds > pause and clock.seconds - clock.elapsed > pause / 2
        return self.job.world.agree(due)

    @property
    def due_to_save(self) -> bool:
        """Whether it is time for a checkpoint besides those of evaluations."""
        every = self.job.settings.save_every
        if every is not None and self.now.step % every == 0:
            return True
        return self.job.world.agree(time.monotonic() - self.saved_at > SAVE_SECONDS)

    def judge(self) -> str | None:
        """Look at the validation pictures and save; gives an objection instead if the model is broken."""
        job, now, began = self.job, self.now, time.monotonic()
        if self.average is not None:
            with self.average.applied():
                outputs = outputs_of(job.trained, job.val, job.world, bfloat16=job.bfloat16)
        else:
            outputs = outputs_of(job.trained, job.val, job.world, bfloat16=job.bfloat16)
        score: Score = job.world.share(score_of(outputs, several=job.objective.several) if job.world.leads else None)
        if not math.isfinite(score.loss):
            return "the loss on the validation pictures is not finite"
        now.judged_step = now.step
        if score.better_than(None if now.best is None else Score(*now.best)):
            now.best, now.best_step, now.stale = (score.value, score.loss, score.n), now.step, 0
        else:
            now.stale += 1
        assert now.best is not None
        self._write(loss=self._mean_loss(), lr=self.lr, val_loss=score.loss, **{f"val_{job.metric}": score.value})
        job.view.judged(now.step, score.value, now.best[0], job.metric)
        self.evaluation_seconds = time.monotonic() - began
        now.judged_seconds = job.clock.elapsed
        self.save()
        return None

    def save(self) -> None:
        """A checkpoint of this moment; older ones but the best are taken away."""
        now, world = self.now, self.job.world
        now.guard, now.seconds = self.guard.memory, self.job.clock.elapsed
        parts = {
            "model": shard.whole(self.job.model.state_dict()),
            "optimizer": shard.whole(optim.read_state(self.optimizers, self.job.model)),
            **({} if self.average is None else {"ema": shard.whole(self.average.tensors())}),
        }
        if world.leads:
            assert self.metrics is not None
            now.metrics_bytes = self.metrics.sync()
            name = kept.step_name(now.step)
            kept.save(self.folder, name, Checkpoint(parts, asdict(now)))
            if now.best_step == now.step and now.best is not None:
                kept.point(self.folder, kept.BEST, name)
            kept.prune(self.folder, {kept.pointed(self.folder, kept.BEST) or ""})
        self.saved_at = time.monotonic()

    def go_back(self, objection: str, batch: Batch) -> None:
        """To the last good checkpoint, with a smaller learning rate; after the third time, the run ends."""
        job, failed_at = self.job, self.now.step + 1
        files = ", ".join(batch.names[:SHOWN_FILES]) + (", ..." if len(batch.names) > SHOWN_FILES else "")
        returns, brake = self.now.returns + 1, self.now.brake * BRAKE
        found = job.world.share(kept.newest(self.folder) if job.world.leads else None)
        assert found is not None, "a run begins with a checkpoint"
        name, checkpoint = found
        if returns > MAX_RETURNS:
            raise TrainError(
                f"at step {failed_at:,} {objection}, and smaller learning rates did not help.",
                got=f"lr={job.settings.lr:g}, a batch with {files}.",
                hint=f"lr={job.settings.lr * BRAKE**MAX_RETURNS:g} in a new run; {self.folder / name} is the last good "
                "checkpoint.",
            )
        self._restore(checkpoint)
        self.now.returns, self.now.brake = returns, brake
        if self.metrics is not None:
            self.metrics.cut(self.now.metrics_bytes)
        job.view.say(
            f"At step {failed_at:,} {objection} (files: {files}). "
            f"Back to step {self.now.step:,} with {brake:g} of the learning rate."
        )

    def take_best(self) -> None:
        """The weights of the best evaluation into the model, the average if there is one."""
        name = kept.pointed(self.folder, kept.BEST) if self.job.world.leads else None
        best = self.job.world.share(kept.load(self.folder, name) if name else None)
        assert best is not None, "an evaluation has been saved"
        shard.fill(self.job.model, {**best.parts["model"], **best.parts.get("ema", {})})

    def close(self) -> None:
        """Let go of the files."""
        for lines in (self.metrics, self.timing, self.events):
            if lines is not None:
                lines.close()

    def _restore(self, checkpoint: Checkpoint) -> None:
        shard.fill(self.job.model, checkpoint.parts["model"])
        optim.write_state(self.optimizers, self.job.model, checkpoint.parts["optimizer"])
        if self.average is not None:
            self.average.restore(checkpoint.parts["ema"])
        self.now = now = Progress(**checkpoint.state)
        self.guard = Guard(now.guard)
        if not self.job.world.leads or now.best is None:
            return
        # A kill may have come before `best` moved; and a damaged checkpoint may have been the best one.
        name = kept.step_name(now.best_step)
        if (self.folder / name).is_dir():
            kept.point(self.folder, kept.BEST, name)
        else:
            now.best = None

    def _mean_loss(self) -> float:
        mean = self.now.loss_sum / self.now.num_losses if self.now.num_losses else math.nan
        self.now.loss_sum, self.now.num_losses = 0.0, 0
        return mean

    def _write(self, **numbers: float) -> None:
        if self.metrics is not None:
            self.metrics.add(step=self.now.step, epoch=round(self.epoch, 4), **numbers)
        if self.events is not None:
            self.events.add(self.now.step, numbers)
