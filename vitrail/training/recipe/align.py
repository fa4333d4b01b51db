"""Aligns the modalities of a sample in one space: images with words, videos with their sound (VATT, arXiv 2104.11178).

    vitrail train digits.csv --recipe align --minutes 5
    vitrail search runs/digits-align "seven" sounds

`digits.csv` has at least two of the columns image, video, sound and text; a folder of class folders is images with the
names of their classes. Each modality has a tower of its own, or all share one transformer (`model.shared=true`). What
belongs together is pulled together, against all other samples of the batch: NCE, and MIL-NCE for texts, of which a
sample may have several. `model.hierarchical=false` has one common space instead of two, `model.drop_token_rate=0.5`
leaves out half of the tokens in training (DropToken). With `--weights`, the image tower starts from them;
`locked=image` keeps them as they are.

Digits as MNIST images, speech and words, one of two cores for 6 minutes, one seed, images and a speaker that training
has not seen, recall at 1 (chance 10 %): image to sound 94.0 %, sound to image 90.6 %, image to text 95.8 %, sound to
text, which training never compares, 66.8 %; with `model.all_pairs=true`, which does, 89.6 % (vatt-digits-6.json).
"""

from __future__ import annotations

from typing import Any

from vitrail.training.recipe.several.settings import AlignSettings, WeightsSettings
from vitrail.training.task import Outcome, Task

KIND = "alignment"


def spec(*, has_weights: bool) -> Any:
    """The settings, by what the image tower starts from."""
    return WeightsSettings if has_weights else AlignSettings


def train(task: Task) -> Outcome:
    """Train all towers together."""
    model = task.kind.new_model(task)
    objective = task.kind.new_objective(task, model)
    progress = task.fit(model, objective)
    val = task.infer(model, task.splits.val, "Validating", objective)
    note = f"Aligned {', '.join(model.TAKES[:-1])} and {model.TAKES[-1]} for {progress.step:,} steps."
    return Outcome(model, val, progress.step, (note,), objective)
