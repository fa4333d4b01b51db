"""The state of the training loop: evaluated, saved to checkpoints, and rolled back when training breaks."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.batch import Batch
from vitrail.contract import Monitoring
from vitrail.data.loader import Loader
from vitrail.errors import RunError, TrainError
from vitrail.metric.score import Score
from vitrail.run import checkpoint as checkpoint_files
from vitrail.run.checkpoint import Checkpoint
from vitrail.run.directory import CHECKPOINTS, METRICS, TIMING, JsonLines
from vitrail.training import optim, shard
from vitrail.training.checkpoints import Checkpoints
from vitrail.training.clock import Clock
from vitrail.training.ema import Ema
from vitrail.training.evaluation import infer
from vitrail.training.guard import Guard
from vitrail.training.learner import Learner
from vitrail.training.run_progress import RunProgress
from vitrail.training.settings import Settings
from vitrail.training.tensorboard import TensorBoard
from vitrail.training.view import StepStatus, View
from vitrail.training.world import World

ROLLBACK_LR_FACTOR = 0.1  # multiplies the learning rate at each rollback
MAX_ROLLBACKS = 3
SAVE_SECONDS = 300.0
NUM_EVALUATIONS = 10  # per run, by default
MAX_EVALUATION_FRACTION = 0.05  # of the time
LOG_EVERY = 20  # steps
GRACE_SECONDS = 20.0  # of training, before its speed is compared with the forecast
SLOW_FRACTION = 2 / 3  # of the forecast
MAX_SHOWN_FILES = 3
NOT_FINITE = "the weights or the optimizer state are not finite"


@dataclass(kw_only=True)
class LoopJob:
    """Everything that one run of the loop needs."""

    run: Path
    """The folder of the run, or of one of its stages."""
    learner: Learner
    wrapped: nn.Module
    """The learner wrapped for DDP or FSDP2; the learner itself if there is one process."""
    settings: Settings
    train_loader: Loader
    small_train_loader: Loader
    """The same samples at a lower resolution, for the first part of the run."""
    val_loader: Loader
    clock: Clock
    world: World
    view: View
    bfloat16: bool = False
    muon_dtype: torch.dtype = torch.float32
    forecast: float | None = None
    """Samples per second, measured before the run."""
    evaluation_seconds: float = 0.0
    """Forecast of one evaluation."""
    noun: str = "samples"
    """What the samples are called in messages and files."""

    def fraction_done(self, step: int) -> float:
        """The fraction of the run that is over; rank 0 has the clock, so all processes agree."""
        done = self.clock.fraction_done(step)
        if self.world.size == 1 or self.clock.steps is not None:
            return done
        return self.world.all_reduce_sum(done if self.world.is_rank_zero else 0.0)[0]

    def loader_at(self, done: float) -> Loader:
        """The training loader for this point of the run."""
        return self.small_train_loader if done < self.settings.small_until else self.train_loader


class State:
    """Everything that changes during a run: weights, optimizers, EMA, guard, progress and files."""

    def __init__(self, job: LoopJob) -> None:
        settings = job.settings
        self.job, self.progress, self.guard = job, RunProgress(), Guard()
        self.folder = job.run / CHECKPOINTS
        self.optimizers = optim.make_optimizers(
            job.learner,
            settings.optimizer,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            layer_decay=settings.layer_decay,
            muon_dtype=job.muon_dtype,
        )
        self.ema = Ema(job.learner, settings.ema) if settings.ema else None
        self.saved_step, self.rolled_back_to = -1, -1
        self.checkpoints = Checkpoints(self.folder, job.learner, job.world)
        found = self.checkpoints.newest()
        if found is not None:
            self._restore(found[1])
            job.clock.resume(self.progress.seconds)
            job.view.say(f"Resuming from step {self.progress.step:,}.")
        self.metrics = JsonLines(job.run / METRICS, self.progress.metrics_bytes) if job.world.is_rank_zero else None
        self.timing = JsonLines(job.run / TIMING, None if found else 0) if job.world.is_rank_zero else None
        self.events = TensorBoard(job.run) if settings.tensorboard and job.world.is_rank_zero else None
        self.last_evaluation, self.last_scores = job.evaluation_seconds, ""
        self.is_slow = False
        self.saved_at = self.shown_at = time.monotonic()
        self.shown_step, self.shown_loss = self.progress.step, math.nan
        # A first checkpoint, so that a rollback is always possible.
        if found is None and self.save() is not None:
            raise TrainError("the initial weights are not finite.", hint="other --weights.")

    def take_step(self, loss: float) -> None:
        """Update the weights and their average."""
        for optimizer in self.optimizers:
            optimizer.step()
        self.progress.step += 1
        if self.ema is not None:
            self.ema.update(self.progress.step)
        self.progress.loss_sum += loss
        self.progress.num_losses += 1

    def show(self) -> None:
        """Show the current step twice a second, and write a line of metrics every twenty steps."""
        progress, job = self.progress, self.job
        if progress.step % LOG_EVERY == 0:
            self._write(**self._mean_loss(), lr=self.lr)
        seconds = time.monotonic() - self.shown_at
        if seconds < 0.5 and progress.step > 1:
            return
        speed = (progress.step - self.shown_step) * job.settings.batch_size / max(seconds, 1e-9)
        done, elapsed = job.clock.fraction_done(progress.step), job.clock.elapsed
        left = job.clock.seconds - elapsed if job.clock.seconds else elapsed * (1 - done) / max(done, 1e-9)
        self.shown_loss = progress.loss_sum / progress.num_losses if progress.num_losses else self.shown_loss
        job.view.show(StepStatus(progress.step, done, self.epoch, self.shown_loss, self.lr, speed, max(0.0, left)))
        if self.timing is not None:
            self.timing.add(
                step=progress.step,
                seconds=round(elapsed, 3),
                **{f"{job.noun}_per_second".replace(" ", "_"): round(speed, 2)},
            )
        self.shown_at, self.shown_step = time.monotonic(), progress.step
        self._compare_with_forecast(elapsed - progress.evaluation_seconds, max(0.0, left))

    def _compare_with_forecast(self, seconds: float, left: float) -> None:
        """Report once if the run is slower than forecast by a third or more."""
        job = self.job
        if job.forecast is None or self.is_slow or seconds < GRACE_SECONDS:
            return
        speed = self.progress.step * job.settings.batch_size / seconds
        self.is_slow = speed < SLOW_FRACTION * job.forecast
        if self.is_slow:
            effect = (
                "the schedule follows the clock and still ends on time" if job.clock.seconds else "the run takes longer"
            )
            job.view.say(
                f"Slower than forecast: {speed:,.0f} {job.noun} per second instead of {job.forecast:,.0f}; {effect} "
                f"({left / 60:.1f} minutes left)."
            )

    @property
    def lr(self) -> float:
        """The highest learning rate of any parameter group."""
        return max(group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups)

    @property
    def epoch(self) -> float:
        """Passes over the training data so far."""
        return self.progress.step / self.job.train_loader.steps_per_epoch

    @property
    def best(self) -> Score | None:
        """The best score so far."""
        stored = self.progress.best
        return None if stored is None else Score(self.job.learner.objective.metric, *stored)

    @property
    def out_of_patience(self) -> bool:
        """Whether the score has stopped improving for too long."""
        patience = self.job.settings.patience
        return patience is not None and self.progress.stale >= patience

    @property
    def due_to_evaluate(self) -> bool:
        """Whether to evaluate now: at intervals, and at the end."""
        settings, clock = self.job.settings, self.job.clock
        if self.job.fraction_done(self.progress.step) >= 1.0:
            return True
        if settings.eval_every is not None:
            return self.progress.step % settings.eval_every == 0
        if clock.steps is not None:
            return self.progress.step % math.ceil(clock.steps / NUM_EVALUATIONS) == 0
        assert clock.seconds is not None
        pause = max(clock.seconds / NUM_EVALUATIONS, self.last_evaluation / MAX_EVALUATION_FRACTION)
        due = clock.elapsed - self.progress.evaluated_at > pause and clock.seconds - clock.elapsed > pause / 2
        return self.job.world.broadcast_flag(due)

    @property
    def due_to_save(self) -> bool:
        """Whether to save a checkpoint now, besides those of evaluations."""
        every = self.job.settings.save_every
        if self.saved_step == self.progress.step:
            return False
        if every is not None and self.progress.step % every == 0:
            return True
        return self.job.world.broadcast_flag(time.monotonic() - self.saved_at > SAVE_SECONDS)

    def evaluate(self) -> str | None:
        """Score the validation data and save; return the problem if the model is broken."""
        job, progress, began = self.job, self.progress, time.monotonic()
        if self.ema is not None:
            with self.ema.applied():
                answers = infer(job.wrapped, job.val_loader, job.world, bfloat16=job.bfloat16)
        else:
            answers = infer(job.wrapped, job.val_loader, job.world, bfloat16=job.bfloat16)
        objective = job.learner.objective
        score: Score = job.world.on_rank_zero(lambda: objective.score(answers.fields))
        if not math.isfinite(score.loss):
            return "the validation loss is not finite"
        monitoring: Monitoring = job.world.on_rank_zero(lambda: objective.monitor(answers.fields))
        shown = ", ".join(f"{each.metric.title} {each.text}" for each in (score, *monitoring.scores))
        self.last_scores = f"; at step {progress.step:,}, {shown}"
        if self.guard.has_diverged(score.loss):
            return f"the validation loss rose to {score.loss:.3g}"
        if monitoring.problem is not None:
            return monitoring.problem
        repeated, progress.evaluated_step = progress.evaluated_step == progress.step, progress.step
        if score.better_than(self.best):
            progress.best, progress.best_step, progress.stale = score[1:], progress.step, 0
        else:
            progress.stale += 1
        best = self.best
        assert best is not None
        if not repeated:
            scores = {"val_loss": score.loss}
            scores |= {f"val_{each.metric.name}": each.value for each in (score, *monitoring.scores)}
            self._write(**self._mean_loss(), lr=self.lr, **scores)
        job.view.show_score(progress.step, score, best, monitoring.scores)
        self.last_evaluation = time.monotonic() - began
        progress.evaluation_seconds += self.last_evaluation
        progress.evaluated_at = job.clock.elapsed
        return self.save()

    def save(self) -> str | None:
        """Save a checkpoint and remove older ones, except the best; return the problem if a value is not finite."""
        progress, job = self.progress, self.job
        progress.guard, progress.seconds = self.guard.state, job.clock.elapsed
        name, parts = checkpoint_files.step_name(progress.step), self._parts()
        if not self._all_finite(parts):
            return NOT_FINITE
        if self.saved_step != progress.step:
            progress.metrics_bytes = 0 if self.metrics is None else self.metrics.sync()
            self.checkpoints.save(name, parts, asdict(progress))
            self.saved_at = time.monotonic()
            self._prune()
        if job.world.is_rank_zero and progress.best_step == progress.step and progress.best is not None:
            checkpoint_files.point(self.folder, checkpoint_files.BEST, name)
        return None

    def roll_back(self, problem: str, step: int, batch: Batch) -> None:
        """Return to the last good checkpoint with a smaller learning rate; after the third time, end the run.

        A checkpoint that leads to a second rollback is considered bad and removed.
        """
        job = self.job
        files = ", ".join(batch.names[:MAX_SHOWN_FILES]) + (", ..." if len(batch.names) > MAX_SHOWN_FILES else "")
        rollbacks, lr_factor = self.progress.rollbacks + 1, self.progress.lr_factor * ROLLBACK_LR_FACTOR
        if job.world.is_rank_zero and self.rolled_back_to == self.saved_step and rollbacks <= MAX_ROLLBACKS:
            checkpoint_files.remove_unless_only(self.folder, checkpoint_files.step_name(self.saved_step))
        found = self.checkpoints.newest()
        if found is None or rollbacks > MAX_ROLLBACKS:
            raise TrainError(
                f"at step {step:,} {problem}, and smaller learning rates did not help.",
                got=f"lr={job.settings.lr:g}, a batch with {files}{self.last_scores}.",
                hint=f"lr={job.settings.lr * lr_factor:g} in a new run"
                + ("." if found is None else f"; {self.folder / found[0]} is the last good checkpoint."),
            )
        self._restore(found[1])
        self.progress.rollbacks, self.progress.lr_factor, self.rolled_back_to = rollbacks, lr_factor, self.progress.step
        if self.metrics is not None:
            self.metrics.cut(self.progress.metrics_bytes)
        job.view.say(
            f"At step {step:,} {problem} (files: {files}). "
            f"Rolled back to step {self.progress.step:,} with {lr_factor:g} of the learning rate."
        )

    def finish(self) -> None:
        """Evaluate the end, then load the best weights (their average, if there is one) into the model."""
        progress = self.progress
        if progress.evaluated_step != progress.step or progress.best is None:
            problem = self.evaluate()
            if problem is not None and progress.best is None:
                raise TrainError(
                    f"at the end, step {progress.step:,}, {problem}.",
                    got=f"lr={self.job.settings.lr:g}.",
                    hint="a lower lr.",
                )
            if problem is not None:
                self.job.view.say(f"At the end {problem}; using the best checkpoint, step {progress.best_step:,}.")
        name = checkpoint_files.step_name(progress.best_step)
        best = self.checkpoints.load(name)
        if best is None:
            raise RunError(
                f"the best checkpoint, {self.folder / name}, is damaged.",
                got="a wrong SHA-256 sum.",
                hint="the same command again: it continues without it.",
            )
        shard.copy_into(self.job.learner.tensors(), {**best.parts["model"], **best.parts.get("ema", {})})

    def close(self) -> None:
        """Close the files."""
        for lines in (self.metrics, self.timing, self.events):
            if lines is not None:
                lines.close()

    def _restore(self, checkpoint: Checkpoint) -> None:
        shard.copy_into(self.job.learner.tensors(), checkpoint.parts["model"])
        optim.load_state(self.optimizers, self.job.learner, checkpoint.parts["optimizer"])
        if self.ema is not None:
            self.ema.restore(checkpoint.parts["ema"])
        self.progress = progress = RunProgress.from_state(checkpoint.state)
        self.guard = Guard(progress.guard)
        self._prune()
        name = checkpoint_files.step_name(progress.best_step)
        if progress.best is not None and progress.best_step != progress.step and not self.checkpoints.has(name):
            self.job.view.say(f"The best checkpoint, {name}, is damaged; the best is chosen again from now on.")
            progress.best = None
        if self.job.world.is_rank_zero:  # the process may have been killed before `best` was updated
            checkpoint_files.point(self.folder, checkpoint_files.BEST, None if progress.best is None else name)

    def _prune(self) -> None:
        """Remove older checkpoints, after this one was saved or restored."""
        progress = self.progress
        if self.job.world.is_rank_zero:
            # Keep the previous checkpoint's best too: if this checkpoint is damaged, the run resumes from that one.
            checkpoint_files.prune(
                self.folder,
                {
                    checkpoint_files.step_name(progress.best_step),
                    checkpoint_files.step_name(progress.previous_best_step),
                },
            )
        self.saved_step, progress.previous_best_step = progress.step, progress.best_step

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of a checkpoint: full, or this process's shards."""
        return {
            "model": self.job.learner.tensors(),
            "optimizer": optim.get_state(self.optimizers, self.job.learner),
            **({} if self.ema is None else {"ema": self.ema.tensors()}),
        }

    def _all_finite(self, parts: dict[str, dict[str, Tensor]]) -> bool:
        """Whether all values on all processes are finite."""
        broken = sum(not checkpoint_files.all_finite(shard.local_tensors(tensors)) for tensors in parts.values())
        return self.job.world.all_reduce_sum(float(broken))[0] == 0

    def _mean_loss(self) -> dict[str, float]:
        """The mean loss since the last call, if there were any steps."""
        progress = self.progress
        mean = {"loss": progress.loss_sum / progress.num_losses} if progress.num_losses else {}
        progress.loss_sum, progress.num_losses = 0.0, 0
        return mean

    def _write(self, **numbers: float) -> None:
        if self.metrics is not None:
            self.metrics.add(step=self.progress.step, epoch=round(self.epoch, 4), **numbers)
        if self.events is not None:
            self.events.add(self.progress.step, numbers)
