"""Climb as high as the time allows: the probe first, then fine-tuning from it, kept only if it is really better.

    vitrail train pets.zip --weights deit_tiny_patch16_224/model.safetensors --minutes 10

Without weights there is nothing to climb from, and the model is trained from scratch. "Really better" is a paired
test on the validation pictures: the fine-tuned model's calibrated losses must be lower by more than chance explains
(one-sided, at 5 %), and its accuracy no lower.

Oxford Pets, 20 pictures of each of 37 breeds, DeiT-Ti/16, two cores: 87.4 % of the test pictures in 10 minutes.
"""

from __future__ import annotations

from typing import Any

from vitrail.adapt import HEADS
from vitrail.data.augment import Augment
from vitrail.training.baseline import fit_baseline
from vitrail.training.evaluation import Z95, paired_gain, score_of
from vitrail.training.model_choice import affordable
from vitrail.training.recipe import finetune, probe, scratch
from vitrail.training.settings import Positive, Share
from vitrail.training.task import Outcome, Task

CHECKS = True  # the data, before anything is made of it
SMALL = 5000  # pictures below which training from scratch disappoints


class Tuning(finetune.Spec):
    """Fine-tuning from a probe is gentle: the head is right already, and the rest nearly."""

    lr: Positive = 5e-5
    label_smoothing: Share = 0.0
    augment: Augment = Augment(scale=(0.5, 1.0), jitter=0.2)


def spec(*, has_weights: bool) -> Any:
    """The settings of the step that this climbs to."""
    return Tuning if has_weights else scratch.Spec


def train(task: Task) -> Outcome:
    """Probe and fine-tune, or train from scratch."""
    if not task.has_weights:
        return from_scratch(task)
    task.view.say("First a linear probe of the frozen features.")
    found = probe.probed(task)
    probed = probe.outcome(task, found)
    multi_label = task.sets.multi_label
    before = score_of(probed.val, multi_label=multi_label)
    task.view.say(f"The probe reaches {before.value:.2%} on validation pictures. Now fine-tuning from it.")
    tuned = tune(task, probed)
    after = score_of(tuned.val, multi_label=multi_label)
    gain, noise = paired_gain(probed.val, tuned.val, multi_label=multi_label)
    told = f"{after.value:.2%} against {before.value:.2%}, the calibrated loss lower by {gain:.3f} +- {noise:.3f}"
    if gain > Z95 * noise and after.value >= before.value:
        return tuned._replace(story=(*probed.story, *tuned.story, f"Fine-tuning was better: {told}."))
    story = f"Fine-tuning was not better beyond the noise ({told}), so the probe is kept"
    if task.sets.whole is not None:
        more = probe.views_of(task, found.model, task.sets.val)
        probed = probe.outcome(task, found, more)._replace(val=probed.val)
        story += f", fitted once more on all {len(task.sets.whole):,} pictures"
    task.view.say(f"{story}.")
    return probed._replace(story=(*probed.story, f"{story}."), steps=tuned.steps)


def from_scratch(task: Task) -> Outcome:
    """Train from scratch, and keep logistic regression on pixels if it is better."""
    num = len(task.sets.train)
    if num < SMALL:
        task.view.say(
            f"Training from scratch on {num:,} images: a Vision Transformer starts without any knowledge of images, "
            "and so few teach it little. With --weights of a pretrained model expect far better."
        )
    baseline = fit_baseline(task)
    if baseline is None:
        return scratch.train(task)
    multi_label = task.sets.multi_label
    before = score_of(baseline.val, multi_label=multi_label)
    task.view.say(f"Baseline, logistic regression on pixels: {before.value:.2%} on validation images.")
    trained = scratch.train(task)
    after = score_of(trained.val, multi_label=multi_label)
    gain, noise = paired_gain(trained.val, baseline.val, multi_label=multi_label)
    scores = f"{before.value:.2%} on validation images against {after.value:.2%}"
    if gain > Z95 * noise and before.value >= after.value:
        note = f"Logistic regression on pixels is better than the model trained from scratch ({scores}), so it is kept."
        task.view.say(f"{note} More minutes, more images or --weights would change that.")
        return baseline._replace(story=(*baseline.story, note), steps=trained.steps)
    return trained._replace(story=(*trained.story, f"Logistic regression on pixels reaches {scores}."))


def tune(task: Task, probed: Outcome) -> Outcome:
    """Fine-tune a copy of the probed model, at the resolution that the time allows."""
    model = affordable(task).new_model(num_classes=len(task.sets.classes))
    heads = {name: value for name, value in probed.model.state_dict().items() if name.startswith(HEADS)}
    model.load_state_dict(heads, strict=False)
    progress = task.fit(model)
    val = task.outputs(model, task.sets.val, "Validating")
    return Outcome(model, val, progress.step, (f"All weights fine-tuned from the probe for {progress.step:,} steps.",))
