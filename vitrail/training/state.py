"""Where a run stands: what its checkpoints hold, how it is judged, saved, and taken back."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.loader import Batch, Loader
from vitrail.errors import RunError, TrainError
from vitrail.objective.classify import Classify
from vitrail.run import checkpoint as kept
from vitrail.run.checkpoint import Checkpoint
from vitrail.run.directory import CHECKPOINTS, METRICS, TIMING, JsonLines
from vitrail.training import optim, shard
from vitrail.training.checkpoints import Checkpoints
from vitrail.training.clock import Clock
from vitrail.training.ema import Ema
from vitrail.training.evaluation import Score, infer, score_of
from vitrail.training.guard import Guard
from vitrail.training.settings import Settings
from vitrail.training.tensorboard import TensorBoard
from vitrail.training.view import Moment, View
from vitrail.training.world import World

BRAKE = 0.1  # by which the learning rate is multiplied when the guard goes back
MAX_RETURNS = 3
SAVE_SECONDS = 300.0
NUM_EVALUATIONS = 10  # in a run, if not told
EVALUATION_SHARE = 0.05  # of the time, at most
LOG_EVERY = 20  # steps
PROBATION = 20.0  # seconds of training, before its speed is compared with the forecast
SLOW = 2 / 3  # of the forecast
SHOWN_FILES = 3
NOT_FINITE = "the weights or what the optimizer remembers are not finite"


@dataclass(kw_only=True)
class Job:
    """All that one run of the loop needs."""

    run: Path
    model: Any
    trained: nn.Module
    """The model as the processes train it together; the model itself if there is one process."""
    objective: Classify
    settings: Settings
    train: Loader
    train_small: Loader
    """The same pictures, smaller, which a run may begin with."""
    val: Loader
    clock: Clock
    world: World
    view: View
    bfloat16: bool = False
    muon_dtype: torch.dtype = torch.float32
    forecast: float | None = None
    """Images per second, as measured before the run."""
    metric: str = "top1"

    def done(self, step: int) -> float:
        """The share of the run that is over, the same for all processes: the leader has the clock."""
        done = self.clock.done(step)
        if self.world.size == 1 or self.clock.steps is not None:
            return done
        return self.world.all_reduce_sum(done if self.world.is_rank_zero else 0.0)[0]

    def loader(self, done: float) -> Loader:
        """Where batches come from at this point of the run."""
        return self.train_small if done < self.settings.small_until else self.train


@dataclass(kw_only=True)
class Progress:
    """The numbers of a run that its next step depends on, all of them in checkpoints."""

    step: int = 0
    best: tuple[float, float, int] | None = None
    best_step: int = 0
    best_before: int = 0
    """The step that was the best when the checkpoint before was made."""
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
    evaluation_seconds: float = 0.0
    """Of all evaluations together."""

    @property
    def training_seconds(self) -> float:
        """Of all steps together."""
        return self.seconds - self.evaluation_seconds


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
            muon_dtype=job.muon_dtype,
        )
        self.average = Ema(job.model, settings.ema) if settings.ema else None
        self.saved_step, self.gone_back_to = -1, -1
        self.saved = Checkpoints(self.folder, job.model, job.world)
        found = self.saved.newest()
        if found is not None:
            self._restore(found[1])
            job.clock.go_back(self.now.seconds)
            job.view.say(f"Going on from step {self.now.step:,}.")
        self.metrics = JsonLines(job.run / METRICS, self.now.metrics_bytes) if job.world.is_rank_zero else None
        self.timing = JsonLines(job.run / TIMING, None if found else 0) if job.world.is_rank_zero else None
        self.events = TensorBoard(job.run) if settings.tensorboard and job.world.is_rank_zero else None
        self.last_evaluation = 0.0
        self.is_slow = False
        self.saved_at = self.shown_at = time.monotonic()
        self.shown_step, self.shown_loss = self.now.step, math.nan
        # A first checkpoint, so that there is something to go back to, whatever happens.
        if found is None and self.save() is not None:
            raise TrainError("the model begins with weights that are not finite.", hint="other --weights.")

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
            self._write(**self._mean_loss(), lr=self.lr)
        seconds = time.monotonic() - self.shown_at
        if seconds < 0.5 and now.step > 1:
            return
        speed = (now.step - self.shown_step) * job.settings.batch_size / max(seconds, 1e-9)
        done, elapsed = job.clock.done(now.step), job.clock.elapsed
        left = job.clock.seconds - elapsed if job.clock.seconds else elapsed * (1 - done) / max(done, 1e-9)
        self.shown_loss = now.loss_sum / now.num_losses if now.num_losses else self.shown_loss
        job.view.show(Moment(now.step, done, self.epoch, self.shown_loss, self.lr, speed, max(0.0, left)))
        if self.timing is not None:
            self.timing.add(step=now.step, seconds=round(elapsed, 3), images_per_second=round(speed, 2))
        self.shown_at, self.shown_step = time.monotonic(), now.step
        self._compare_with_forecast(elapsed - now.evaluation_seconds, max(0.0, left))

    def _compare_with_forecast(self, seconds: float, left: float) -> None:
        """Say so, once, if the run is slower than it was measured to be by a third or more."""
        job = self.job
        if job.forecast is None or self.is_slow or seconds < PROBATION:
            return
        speed = self.now.step * job.settings.batch_size / seconds
        self.is_slow = speed < SLOW * job.forecast
        if self.is_slow:
            what = (
                "the schedule follows the clock and still ends in time" if job.clock.seconds else "the run takes longer"
            )
            job.view.say(
                f"Slower than forecast, {speed:,.0f} images a second instead of {job.forecast:,.0f}: {what} "
                f"({left / 60:.1f} minutes left)."
            )

    @property
    def lr(self) -> float:
        """The learning rate of the group that learns fastest."""
        return max(group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups)

    @property
    def epoch(self) -> float:
        """How often the data has been seen."""
        return self.now.step / self.job.train.steps_per_epoch

    @property
    def out_of_patience(self) -> bool:
        """Whether the score has not become better for too long."""
        patience = self.job.settings.patience
        return patience is not None and self.now.stale >= patience

    @property
    def due_to_evaluate(self) -> bool:
        """Whether it is time to look at the validation pictures: now and then, and at the end."""
        settings, clock = self.job.settings, self.job.clock
        if self.job.done(self.now.step) >= 1.0:
            return True
        if settings.eval_every is not None:
            return self.now.step % settings.eval_every == 0
        if clock.steps is not None:
            return self.now.step % math.ceil(clock.steps / NUM_EVALUATIONS) == 0
        assert clock.seconds is not None
        pause = max(clock.seconds / NUM_EVALUATIONS, self.last_evaluation / EVALUATION_SHARE)
        due = clock.elapsed - self.now.judged_seconds > pause and clock.seconds - clock.elapsed > pause / 2
        return self.job.world.broadcast_flag(due)

    @property
    def due_to_save(self) -> bool:
        """Whether it is time for a checkpoint besides those of evaluations."""
        every = self.job.settings.save_every
        if self.saved_step == self.now.step:
            return False
        if every is not None and self.now.step % every == 0:
            return True
        return self.job.world.broadcast_flag(time.monotonic() - self.saved_at > SAVE_SECONDS)

    def judge(self) -> str | None:
        """Look at the validation pictures and save; gives an objection instead if the model is broken."""
        job, now, began = self.job, self.now, time.monotonic()
        if self.average is not None:
            with self.average.applied():
                outputs = infer(job.trained, job.val, job.world, bfloat16=job.bfloat16)
        else:
            outputs = infer(job.trained, job.val, job.world, bfloat16=job.bfloat16)
        score: Score = job.world.broadcast(
            score_of(outputs, multi_label=job.objective.multi_label) if job.world.is_rank_zero else None
        )
        if not math.isfinite(score.loss):
            return "the loss on the validation pictures is not finite"
        again, now.judged_step = now.judged_step == now.step, now.step
        if score.better_than(None if now.best is None else Score(*now.best)):
            now.best, now.best_step, now.stale = (score.value, score.loss, score.n), now.step, 0
        else:
            now.stale += 1
        assert now.best is not None
        if not again:
            self._write(**self._mean_loss(), lr=self.lr, val_loss=score.loss, **{f"val_{job.metric}": score.value})
        job.view.judged(now.step, score.value, now.best[0], job.metric)
        self.last_evaluation = time.monotonic() - began
        now.evaluation_seconds += self.last_evaluation
        now.judged_seconds = job.clock.elapsed
        return self.save()

    def save(self) -> str | None:
        """A checkpoint of this moment, older ones but the best taken away; an objection instead if it is not finite."""
        now, job = self.now, self.job
        now.guard, now.seconds = self.guard.memory, job.clock.elapsed
        name, parts = kept.step_name(now.step), self._parts()
        if not self._finite(parts):
            return NOT_FINITE
        if self.saved_step != now.step:
            now.metrics_bytes = 0 if self.metrics is None else self.metrics.sync()
            self.saved.save(name, parts, asdict(now))
            self.saved_at = time.monotonic()
            self._tidy()
        if job.world.is_rank_zero and now.best_step == now.step and now.best is not None:
            kept.point(self.folder, kept.BEST, name)
        return None

    def go_back(self, objection: str, step: int, batch: Batch) -> None:
        """To the last good checkpoint, with a smaller learning rate; after the third time, the run ends.

        The second time from the same checkpoint, that one is taken for as bad as what came of it, and left as well.
        """
        job = self.job
        files = ", ".join(batch.names[:SHOWN_FILES]) + (", ..." if len(batch.names) > SHOWN_FILES else "")
        returns, brake = self.now.returns + 1, self.now.brake * BRAKE
        if job.world.is_rank_zero and self.gone_back_to == self.saved_step and returns <= MAX_RETURNS:
            kept.remove_unless_only(self.folder, kept.step_name(self.saved_step))
        found = self.saved.newest()
        if found is None or returns > MAX_RETURNS:
            raise TrainError(
                f"at step {step:,} {objection}, and smaller learning rates did not help.",
                got=f"lr={job.settings.lr:g}, a batch with {files}.",
                hint=f"lr={job.settings.lr * BRAKE**MAX_RETURNS:g} in a new run"
                + ("." if found is None else f"; {self.folder / found[0]} is the last good checkpoint."),
            )
        self._restore(found[1])
        self.now.returns, self.now.brake, self.gone_back_to = returns, brake, self.now.step
        if self.metrics is not None:
            self.metrics.cut(self.now.metrics_bytes)
        job.view.say(
            f"At step {step:,} {objection} (files: {files}). "
            f"Back to step {self.now.step:,} with {brake:g} of the learning rate."
        )

    def finish(self) -> None:
        """The weights of the best evaluation into the model, the average if there is one; the end is one of them."""
        now = self.now
        if now.judged_step != now.step or now.best is None:
            objection = self.judge()
            if objection is not None and now.best is None:
                raise TrainError(
                    f"at the end, step {now.step:,}, {objection}.",
                    got=f"lr={self.job.settings.lr:g}.",
                    hint="a lower lr.",
                )
            if objection is not None:
                self.job.view.say(f"At the end {objection}: the best before it, of step {now.best_step:,}, is taken.")
        name = kept.step_name(now.best_step)
        best = self.saved.load(name)
        if best is None:
            raise RunError(
                f"the best checkpoint, {self.folder / name}, has been damaged.",
                got="other bytes than were written.",
                hint="the same command again, which goes on without it.",
            )
        shard.fill(self.job.model.state_dict(), {**best.parts["model"], **best.parts.get("ema", {})})

    def close(self) -> None:
        """Let go of the files."""
        for lines in (self.metrics, self.timing, self.events):
            if lines is not None:
                lines.close()

    def _restore(self, checkpoint: Checkpoint) -> None:
        shard.fill(self.job.model.state_dict(), checkpoint.parts["model"])
        optim.write_state(self.optimizers, self.job.model, checkpoint.parts["optimizer"])
        if self.average is not None:
            self.average.restore(checkpoint.parts["ema"])
        self.now = now = Progress(**checkpoint.state)
        self.guard = Guard(now.guard)
        self._tidy()
        name = kept.step_name(now.best_step)
        if now.best is not None and now.best_step != now.step and not self.saved.has(name):
            self.job.view.say(f"The best checkpoint, {name}, is damaged: the best of those to come will be taken.")
            now.best = None
        if self.job.world.is_rank_zero:  # a kill may have come before `best` moved
            kept.point(self.folder, kept.BEST, None if now.best is None else name)

    def _tidy(self) -> None:
        """Take away older checkpoints, after this one was saved or gone back to."""
        now = self.now
        if self.job.world.is_rank_zero:
            # The best of the checkpoint before stays too: if this one is damaged, that one is gone on from.
            kept.prune(self.folder, {kept.step_name(now.best_step), kept.step_name(now.best_before)})
        self.saved_step, now.best_before = now.step, now.best_step

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        """The tensors that a checkpoint holds, each as this process has it: whole, or a part."""
        return {
            "model": self.job.model.state_dict(),
            "optimizer": optim.read_state(self.optimizers, self.job.model),
            **({} if self.average is None else {"ema": self.average.tensors()}),
        }

    def _finite(self, parts: dict[str, dict[str, Tensor]]) -> bool:
        """Whether all numbers of all processes are finite."""
        broken = sum(not kept.all_finite(shard.local(tensors)) for tensors in parts.values())
        return self.job.world.all_reduce_sum(float(broken))[0] == 0

    def _mean_loss(self) -> dict[str, float]:
        """The mean of the losses since it was last asked for, if there were any."""
        now = self.now
        mean = {"loss": now.loss_sum / now.num_losses} if now.num_losses else {}
        now.loss_sum, now.num_losses = 0.0, 0
        return mean

    def _write(self, **numbers: float) -> None:
        if self.metrics is not None:
            self.metrics.add(step=self.now.step, epoch=round(self.epoch, 4), **numbers)
        if self.events is not None:
            self.events.add(self.now.step, numbers)
