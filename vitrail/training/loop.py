"""The training loop: batch, loss, backward, clip, step; then, when due, log, evaluate and save.

The next step depends only on the seed, the step number and the checkpoint: the order and augmentation of samples
(data/rng.py), dropout (seeded for each step), the schedule, the guard's state. So a run that was killed and resumed
ends with the same bits as one that was not.
"""

from __future__ import annotations

import math
from contextlib import closing, nullcontext

import torch
from torch import nn

from vitrail.batch import Batch, split_fields
from vitrail.training import optim
from vitrail.training.interrupt import Interrupted, StopSignal
from vitrail.training.run_progress import RunProgress
from vitrail.training.sam import ascended
from vitrail.training.schedule import lr_scale
from vitrail.training.state import LoopJob, State

SEED_RANGE = 2**63
SEED_STRIDE = 0x9E3779B97F4A7C15  # decorrelates the seeds of neighbouring runs


def train(job: LoopJob) -> RunProgress:
    """Train until the clock runs out, resuming from the last checkpoint; leave the best weights in the model."""
    settings = job.settings
    batches, loader = None, None
    job.wrapped.train()
    with closing(State(job)) as state:
        with StopSignal() as stop:
            while (done := job.fraction_done(state.progress.step)) < 1.0 and not state.out_of_patience:
                if batches is None or job.loader_at(done) is not loader:
                    loader = job.loader_at(done)
                    batches = loader.batches(state.progress.step)
                step, batch = state.progress.step, next(batches)
                scale = lr_scale(settings.schedule, done, settings.warmup)
                optim.scale_lr(state.optimizers, state.progress.lr_factor * scale)
                loss, norm, stopping = compute_gradients(job, batch, step, stop)
                problem = state.guard.find_problem(loss, norm)
                if problem is None:
                    state.take_step(loss)
                    state.show()
                    if state.due_to_evaluate:
                        problem = state.evaluate()
                if problem is None and (stopping or state.due_to_save):
                    problem = state.save()
                if problem is not None:
                    state.roll_back(problem, step + 1, batch)
                    batches = None
                elif stopping:
                    interrupted = Interrupted(state.progress.step, job.run)
                    job.view.say(str(interrupted))  # Typer swallows the message of an interrupt
                    raise interrupted
        state.finish()
    return state.progress


def compute_gradients(job: LoopJob, batch: Batch, step: int, stop: StopSignal) -> tuple[float, float, bool]:
    """Compute loss and gradients of a batch; with SAM, the loss at the weights and the gradients of a point nearby."""
    loss, norm, stopping = backpropagate(job, batch, step, stop)
    if job.settings.sam is None or not (math.isfinite(loss) and math.isfinite(norm)):
        return loss, norm, stopping
    with ascended(job.wrapped.parameters(), job.settings.sam):
        _, norm, _ = backpropagate(job, batch, step, stop)  # the same seed, so the same dropout
    return loss, norm, stopping


def backpropagate(job: LoopJob, batch: Batch, step: int, stop: StopSignal) -> tuple[float, float, bool]:
    """Compute loss and gradients of a batch over all processes, accumulating over parts that fit in memory.

    The loss is the sum over all units of all processes and parts, divided by their number. Returns it, the gradient
    norm, and whether any process was asked to stop.
    """
    world, settings = job.world, job.settings
    torch.manual_seed((settings.seed * SEED_STRIDE + step * world.size + world.rank) % SEED_RANGE)
    job.wrapped.zero_grad(set_to_none=True)
    fields = batch.to(world.device).fields
    local_units = job.learner.objective.units(fields).double().sum().item()
    num_units, stopping = world.all_reduce_sum(local_units, float(stop.requested))
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    # The same number of parts on every process, even with fewer samples: FSDP's collectives must match.
    parts = split_fields(fields, settings.accumulate or 1)
    for number, part in enumerate(parts, start=1):
        skip_sync = number < len(parts) and hasattr(job.wrapped, "no_sync")
        with job.wrapped.no_sync() if skip_sync else nullcontext():  # type: ignore[operator]
            with torch.autocast(world.device.type, torch.bfloat16, enabled=job.bfloat16):
                losses = job.wrapped(part)
            # DDP averages gradients over processes: multiply by their number to get the mean over all units.
            (losses.sum() * (world.size / max(num_units, 1.0))).backward()
            total += losses.detach().double().sum()
    (loss,) = world.all_reduce_sum(total.item())
    norm = nn.utils.clip_grad_norm_(job.wrapped.parameters(), settings.clip or float("inf"))
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return loss / max(num_units, 1.0), norm.item(), stopping > 0
