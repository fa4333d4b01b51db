"""A linear probe first, then fine-tuning from it, used only if it is significantly better.

    vitrail train pets.zip --weights deit_tiny_patch16_224/model.safetensors --minutes 10

Without weights, logistic regression on pixels comes first, then training from scratch; the baseline is used only if it
is significantly better. Significance is a paired, one-sided test at 5 % of the calibrated losses on the validation
images; the accuracy must not be lower either.

    vitrail train few --unlabelled photos --weights deit_tiny_patch16_224/model.safetensors --minutes 10

With `--unlabelled`, the probe labels the images that it is confident about, and a noisy student (noisy_student.py)
learns from all of them instead of fine-tuning on the labelled ones, if there are enough such images and time to see all
of them twice. Without weights, Noisy Student replaces training from scratch if the time is long enough to see each
labelled image 50 times: with less, all of it is needed to learn what the labels can teach. What to expect of each step,
and the choice, are part of the result.

Pretraining on all images is not one of the steps. It is another kind of run, with its own preparation of data, decoder
and report, and in minutes it gains less than a noisy student (docs/few-labels.md). With hours, run `--recipe pretrain`
first and pass the run as `--weights`.

Oxford Pets, 20 images of each of 37 breeds, DeiT-Ti/16, two cores: 87.4 % test accuracy in 10 minutes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from vitrail.data.augment import Augment
from vitrail.data.join import join_tables
from vitrail.data.table import IMAGE
from vitrail.run.directory import SCALING, write_json
from vitrail.spec import FinitePositive, PartialFraction
from vitrail.training.evaluation import Z_ONE_SIDED_95, describe_gain, paired_gain
from vitrail.training.recipe import finetune, noisy_student, probe, scratch
from vitrail.training.recipe.image.baseline import fit_baseline, name_baseline
from vitrail.training.recipe.image.classifier import as_classifier
from vitrail.training.recipe.image.ladder import held_out_ladder
from vitrail.training.recipe.image.model_choice import MIN_EPOCHS, MIN_SCALE, choose_image_size, forecast_epochs
from vitrail.training.recipe.image.pseudo import PseudoLabelled, check_tables, label_images
from vitrail.training.recipe.image.settings import ImageSettings
from vitrail.training.task import Outcome, Task

CHECKS_DATA = True
USES_UNLABELLED = True
SMALL_DATA = 5000  # images; training from scratch on fewer disappoints
MIN_PSEUDO_SHARE = 0.1  # of the labelled images; fewer images labelled by the probe change nothing
FORECAST_SHARE = 0.03  # of the run's minutes, at most, for the forecast of what more images would bring
FORECAST_IMAGES = 2000  # up to which a run without minutes has that forecast
TEACHER_EPOCHS = 50.0  # of the labelled images in the whole run, before Noisy Student from scratch pays off


class TuningSpec(finetune.Spec):
    """Gentle fine-tuning: the head is already fitted, and the features are nearly right."""

    lr: FinitePositive = 5e-5
    label_smoothing: PartialFraction = 0.0
    augment: Augment = Augment(scale=(0.5, 1.0), jitter=0.2)


def spec(*, has_weights: bool) -> Any:
    """The settings of the last stage."""
    return TuningSpec if has_weights else scratch.Spec


class Step(NamedTuple):
    """What follows the probe: the task, its name, and why it was chosen."""

    task: Task
    name: str = "fine-tuning"
    notes: tuple[str, ...] = ()


def train(task: Task) -> Outcome:
    """Probe, then fine-tune; without weights, train from scratch."""
    if not task.has_weights:
        return train_from_scratch(task)
    task.view.say("First, a linear probe on frozen features.")
    fitted = probe.fit_probe(task)
    probe_outcome = probe.make_outcome(task, fitted)
    objective = task.kind.new_objective(task)
    before = objective.score(probe_outcome.val.fields)
    task.view.say(f"The probe reaches {before.text} on validation images.")
    forecast_more_data(task, fitted)
    step = choose_step(task, probe_outcome)
    task.view.say(f"Now {step.name} from it.")
    tuned = tune(step.task, probe_outcome)
    after = objective.score(tuned.val.fields)
    gain, noise = paired_gain(probe_outcome.val, tuned.val, objective)
    scores = f"{after.text} against {before.text}; {describe_gain(objective.COMPARES, gain, noise)}"
    notes = (*probe_outcome.notes, *step.notes)
    if gain > Z_ONE_SIDED_95 * noise and not after.worse_than(before):
        return tuned._replace(notes=(*notes, *tuned.notes, f"{step.name.capitalize()} was better: {scores}."))
    note = f"{step.name.capitalize()} was not significantly better ({scores}), so the probe is used."
    task.view.say(note)
    return probe.refit(task, fitted, probe_outcome._replace(notes=(*notes, note), steps=tuned.steps))


def forecast_more_data(task: Task, fitted: probe.Probe) -> None:
    """Forecast what more images would bring to the probe, for the report; if there are enough, and time."""
    train, path = task.splits.train, task.run / SCALING
    if train.values is not None or train.multi_label or not task.world.is_rank_zero or path.is_file():
        return
    minutes = task.settings.minutes
    if minutes is None and len(train) > FORECAST_IMAGES:
        return
    # A run of steps or epochs is reproducible, so nothing in it may depend on time.
    seconds = math.inf if minutes is None else 60 * minutes * FORECAST_SHARE
    views, c_value = fitted.views, fitted.selection.c_value
    found = held_out_ladder(views.features, views.labels, c_value=c_value, seconds=seconds)
    if found is not None:
        task.view.say(f"{found.verdict} (The probe, on held-out training images.)")
        write_json(path, found.document())


def train_from_scratch(task: Task) -> Outcome:
    """Train from scratch; return logistic regression on pixels if that is significantly better."""
    num_images = len(task.splits.train)
    if num_images < SMALL_DATA and task.splits.train.modalities == IMAGE:
        task.view.say(
            f"Training from scratch on only {num_images:,} images: a Vision Transformer starts without any knowledge "
            "of images. Pretrained --weights give far better results."
        )
    baseline = fit_baseline(task)
    if baseline is None:
        return train_new(task)
    objective = task.kind.new_objective(task)
    before = objective.score(baseline.val.fields)
    name = name_baseline(task.splits.train)
    task.view.say(f"Baseline ({name} on pixels): {before.text} on validation images.")
    trained = train_new(task)
    after = objective.score(trained.val.fields)
    gain, noise = paired_gain(trained.val, baseline.val, objective)
    scores = f"{before.text} on validation images against {after.text}"
    if gain > Z_ONE_SIDED_95 * noise and not before.worse_than(after):
        note = f"{name.capitalize()} on pixels is better than the model trained from scratch ({scores}), so it is used."
        task.view.say(f"{note} More minutes, more images or --weights may change that.")
        tried = () if task.unlabelled is None else trained.notes
        return baseline._replace(notes=(*baseline.notes, *tried, note), steps=trained.steps)
    return trained._replace(notes=(*trained.notes, f"{name.capitalize()} on pixels reaches {scores}."))


def train_new(task: Task) -> Outcome:
    """Train from scratch; with unlabelled images and time to learn the labelled ones first, a teacher and a student."""
    if task.unlabelled is None:
        return scratch.train(task)
    labelled, unlabelled = check_tables(task.splits.train, task.unlabelled)
    noun = task.kind.NOUN
    epochs = task.decide("labelled_epochs", lambda: round(forecast_epochs(task, task.kind.new_model(task)), 1))
    note = f"The run is long enough for about {epochs:,.1f} epochs of {len(labelled):,} labelled {noun}"
    if epochs < TEACHER_EPOCHS:
        note += f". A teacher and a student need {TEACHER_EPOCHS:g}, so the labelled {noun} are used alone."
        task.view.say(note)
        outcome = scratch.train(task)
    else:
        note += (
            f", {TEACHER_EPOCHS:g} or more, so Noisy Student is tried: a teacher labels those of {len(unlabelled):,} "
            f"unlabelled {noun} that it is confident about, then a student learns from all."
        )
        task.view.say(note)
        outcome = noisy_student.train(replace(task, settings=student_settings(task)))
    return outcome._replace(notes=(note, *outcome.notes))


def choose_step(task: Task, probe_outcome: Outcome) -> Step:
    """Choose fine-tuning or, with unlabelled images, a noisy student, by what is to be expected of each."""
    if task.unlabelled is None:
        return Step(task)
    labelled, unlabelled = check_tables(task.splits.train, task.unlabelled)
    settings = student_settings(task)
    pseudo, stage = None, task
    if task.decisions.get("student", {"taken": True})["taken"]:  # else a resumed run need not label them again
        model = as_classifier(probe_outcome.model)
        confidence, soft = settings.confidence, settings.soft
        pseudo = label_images(task, model, probe_outcome.val, unlabelled, confidence=confidence, soft=soft)
    if pseudo is not None:
        stage = noisy_student.make_student_stage(task, join_tables(labelled, pseudo.table), settings)
    decision = task.decide("student", lambda: weigh_student(task, stage, pseudo))
    for note in decision["notes"]:
        task.view.say(note)
    name = "training a student" if decision["taken"] else "fine-tuning"
    return Step(stage if decision["taken"] else task, name, tuple(decision["notes"]))


def weigh_student(task: Task, stage: Task, pseudo: PseudoLabelled | None) -> dict[str, Any]:
    """Whether a student can be better than fine-tuning in the length of the run; and what to expect of both."""
    num, more = len(task.splits.train), 0 if pseudo is None else len(pseudo.table)
    noun = task.kind.NOUN
    if pseudo is None or more < MIN_PSEUDO_SHARE * num:
        found = (
            f"No unlabelled {noun} were labelled with enough confidence" if pseudo is None else f"Only {pseudo.note}"
        )
        note = f"{found}: too few to learn from beside {num:,} labelled {noun}, so those are used alone."
        return {"taken": False, "notes": [note]}
    model, in_minutes = stage.kind.new_model(stage), task.settings.minutes is not None
    epochs = forecast_epochs(stage, model)
    alone = epochs * (num + more) / num if in_minutes else forecast_epochs(task, model)
    expected = (
        f"Expected from fine-tuning: about {alone:,.1f} epochs of {num:,} labelled {noun}. "
        f"From a noisy student: about {epochs:,.1f} epochs of {num + more:,} {noun}; {pseudo.note}."
    )
    shrinks = epochs < MIN_EPOCHS and in_minutes and task.can_choose_model
    taken = epochs / (MIN_SCALE**2 if shrinks else 1) >= MIN_EPOCHS
    choice = f"Fewer than {MIN_EPOCHS:g} epochs are possible, so the labelled {noun} are used alone."
    if taken:
        place = f" on smaller {noun}" if shrinks else ""
        choice = f"At least {MIN_EPOCHS:g} epochs are possible{place}, so the student is tried."
    return {"taken": taken, "notes": [expected, choice]}


def student_settings(task: Task) -> noisy_student.StudentSettings:
    """The settings of noisy_student; a student has its own augmentation unless the user chose one."""
    settings, spec = task.settings, noisy_student.spec(has_weights=task.has_weights)
    assert isinstance(settings, ImageSettings)
    fields = {name: value for name, value in settings if name in spec.model_fields}
    if settings.augment != type(settings)().augment:
        fields["student_augment"] = settings.augment
    student: noisy_student.StudentSettings = spec().override(fields)
    return student


def tune(task: Task, probe_outcome: Outcome) -> Outcome:
    """Fine-tune from the probe, at the image size that the time allows."""
    model = task.kind.new_model(choose_image_size(task))
    for head, fitted in zip(model.heads, probe_outcome.model.heads, strict=True):
        head.load_state_dict(fitted.state_dict())
    progress = task.fit(model)
    val = task.infer(model, task.splits.val, "Validating")
    return Outcome(model, val, progress.step, (f"All weights fine-tuned from the probe for {progress.step:,} steps.",))
