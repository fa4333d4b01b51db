"""Climb as high as the time allows: the probe first, then fine-tuning from it, kept only if it is really better.

    vitrail train pets.zip --weights deit_tiny_patch16_224/model.safetensors --minutes 10

Without weights there is nothing to climb from, and the model is trained from scratch. "Really better" is a paired
test on the validation pictures: the fine-tuned model's calibrated losses must be lower by more than chance explains
(one-sided, at 5 %), and its accuracy no lower.

Oxford Pets, 20 pictures of each of 37 breeds, DeiT-Ti/16, two cores: see docs/training.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from vitrail import plug
from vitrail.objective.classify import Classify
from vitrail.training.judge import Outputs, score_of
from vitrail.training.task import Outcome, Task

RECIPES = "vitrail.training.recipe"
Z95 = 1.645  # the normal quantile of a one-sided test at 5 %
TEMPERATURES = tuple(10 ** (power / 20) for power in range(-20, 21))
SMALL = 5000  # pictures below which training from scratch disappoints


def spec(*, has_weights: bool) -> Any:
    """The settings of the step that this climbs to."""
    recipe = plug.load(RECIPES, "finetune" if has_weights else "scratch")
    return recipe.Spec


def train(task: Task) -> Outcome:
    """Probe and fine-tune, or train from scratch."""
    if not task.has_weights:
        num = len(task.sets.train)
        if num < SMALL:
            task.view.say(
                f"Training from scratch on {num:,} pictures: a Vision Transformer knows nothing of pictures at first, "
                "and so few teach it little. With --weights of a pretrained model expect far better."
            )
        return plug.load(RECIPES, "scratch").train(task)
    task.view.say("First a linear probe of the frozen features.")
    probe: Outcome = plug.load(RECIPES, "probe").train(task)
    several = task.sets.several
    before = score_of(probe.val, several=several)
    task.view.say(f"The probe reaches {before.value:.2%} on validation pictures. Now fine-tuning from it.")
    tuned = finetune(task, probe)
    after = score_of(tuned.val, several=several)
    gain, noise = paired_gain(probe.val, tuned.val, several=several)
    told = f"{after.value:.2%} against {before.value:.2%}, the calibrated loss lower by {gain:.3f} +- {noise:.3f}"
    if gain > Z95 * noise and after.value >= before.value:
        return tuned._replace(story=(*probe.story, *tuned.story, f"Fine-tuning was better: {told}."))
    story = f"Fine-tuning was not better beyond the noise ({told}), so the probe is kept"
    if task.sets.whole is not None:
        again = replace(task, sets=task.sets._replace(train=task.sets.whole))
        probe = plug.load(RECIPES, "probe").train(again)._replace(val=probe.val)
        story += f", fitted once more on all {len(task.sets.whole):,} pictures"
    task.view.say(f"{story}.")
    return probe._replace(story=(*probe.story, f"{story}."), steps=tuned.steps)


def finetune(task: Task, probe: Outcome) -> Outcome:
    """Fine-tune a copy of the probed model."""
    model = task.new_model(num_classes=len(task.sets.classes))
    model.load_state_dict(probe.model.state_dict())
    progress = task.fit(model)
    val = task.outputs(model, task.sets.val, "Validating")
    return Outcome(model, val, progress.step, (f"All weights fine-tuned from the probe for {progress.step:,} steps.",))


def paired_gain(before: Outputs, after: Outputs, *, several: bool) -> tuple[float, float]:
    """How much lower the loss is on average over the same pictures, and the standard error of that.

    Each model at its own best temperature: one that is less sure of itself is not a worse one.
    """
    assert torch.equal(before.indices, after.indices)
    losses = []
    for outputs in (before, after):
        at_each = [Classify(several=several).losses(outputs.logits / heat, outputs.labels) for heat in TEMPERATURES]
        losses.append(min(at_each, key=lambda each: each.mean().item()).double())
    gains = losses[0] - losses[1]
    return gains.mean().item(), gains.std().item() / math.sqrt(max(1, len(gains)))
