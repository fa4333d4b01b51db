"""The loop: batch, loss, backward, clip, step; then, when due, show, judge and save.

Everything that decides the next step is a function of the seed, the step's number and the checkpoint: the order and
the pixels (data/rng.py), dropout (seeded anew for each step), the schedule, the guard's memory. So a run that was
killed and goes on ends with the same bits as one that was not.
"""

from __future__ import annotations

from contextlib import closing, nullcontext

import torch
from torch import nn

from vitrail.data.loader import Batch
from vitrail.training import optim
from vitrail.training.interrupt import Interrupted, Stop
from vitrail.training.schedule import rate
from vitrail.training.state import Job, Progress, State

SEEDS = 2**63
STRIDE = 0x9E3779B97F4A7C15  # so that the seeds of neighbouring steps have nothing in common


def train(job: Job) -> Progress:
    """Train until the clock has run out, from the last checkpoint if there is one; the model ends as its best."""
    settings = job.settings
    batches, loader = None, None
    job.trained.train()
    with closing(State(job)) as state:
        with Stop() as stop:
            while (done := job.done(state.now.step)) < 1.0 and not state.out_of_patience:
                if batches is None or job.loader(done) is not loader:
                    loader = job.loader(done)
                    batches = loader.batches(state.now.step)
                step, batch = state.now.step, next(batches)
                optim.set_rate(state.optimizers, state.now.brake * rate(settings.schedule, done, settings.warmup))
                loss, norm, stopping = learn(job, batch, step, stop)
                objection = state.guard.objection(loss, norm)
                if objection is None:
                    state.take_step(loss)
                    state.show()
                    if state.due_to_evaluate:
                        objection = state.judge()
                if objection is None and (stopping or state.due_to_save):
                    objection = state.save()
                if objection is not None:
                    state.go_back(objection, step + 1, batch)
                    batches = None
                elif stopping:
                    interrupted = Interrupted(state.now.step, job.run)
                    job.view.say(str(interrupted))  # Typer swallows what an interrupt says
                    raise interrupted
        state.finish()
    return state.now


def learn(job: Job, batch: Batch, step: int, stop: Stop) -> tuple[float, float, bool]:
    """Loss and gradients of a batch, in as many parts as fit in memory, over all processes.

    Gives the mean loss, the norm of the gradient, and whether any process was asked to stop.
    """
    world, settings = job.world, job.settings
    torch.manual_seed((settings.seed * STRIDE + step * world.size + world.rank) % SEEDS)
    job.trained.zero_grad(set_to_none=True)
    num, asked = world.all_reduce_sum(float(len(batch.images)), float(stop.asked))
    num_parts = settings.accumulate or 1
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    images, labels = batch.images.to(world.device), batch.labels.to(world.device)
    # As many parts on every process, also where one has fewer pictures: parts of a model work in step.
    parts = list(zip(images.tensor_split(num_parts), labels.tensor_split(num_parts), strict=True))
    for number, (pictures, targets) in enumerate(parts, start=1):
        waits = number < len(parts) and hasattr(job.trained, "no_sync")
        with job.trained.no_sync() if waits else nullcontext():  # type: ignore[operator]
            with torch.autocast(world.device.type, torch.bfloat16, enabled=job.bfloat16):
                losses = job.objective(job.trained, pictures, targets)
            # Processes average their gradients, so each takes its pictures' share of all, times their number.
            (losses.sum() * (world.size / max(num, 1.0))).backward()
            total += losses.detach().double().sum()
    (loss,) = world.all_reduce_sum(total.item())
    norm = nn.utils.clip_grad_norm_(job.trained.parameters(), settings.clip or float("inf"))
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return loss / max(num, 1.0), norm.item(), asked > 0
