"""Fine-tuning, the paper's transfer (arXiv 2010.11929, section 3.2): a new head of zeros, all weights trained on.

    vitrail train pets.zip --weights deit_tiny_patch16_224/model.safetensors --recipe finetune --minutes 8

`model.image_size=384` fine-tunes at a higher resolution, the position table interpolated. Lower layers learn more
slowly (`layer_decay`). `lora=8` trains two thin matrices beside each large one instead of it (arXiv 2106.09685); they
are added into the weights at the end, so that the result is an ordinary model. `optimizer=sgd lr=0.03` is the paper's
own choice. `head_from=probe` starts from the linear probe's head instead of zeros, which is gentler on small data
(arXiv 2202.10054).

Oxford Pets, 20 pictures of each of 37 breeds, DeiT-Ti/16, two cores: see docs/training.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vitrail import plug
from vitrail.data.augment import Augment
from vitrail.training import lora
from vitrail.training.model_choice import affordable
from vitrail.training.settings import Positive, Settings, Share
from vitrail.training.task import Outcome, Task


class Spec(Settings):
    """The loop's settings, with defaults for small sets of pictures."""

    batch_size: int = Field(64, gt=0)
    lr: Positive = 3e-4
    weight_decay: float = Field(0.05, ge=0.0)
    layer_decay: float = Field(0.75, gt=0.0, le=1.0)
    warmup: Share = 0.1
    ema: Share = 0.99
    label_smoothing: Share = 0.1
    augment: Augment = Augment(scale=(0.35, 1.0), jitter=0.2, mixup=0.2)
    lora: Annotated[int, Field(ge=0)] = 0
    """The rank of the thin matrices; 0 to train the weights themselves."""
    head_from: Literal["zeros", "probe"] = "zeros"


def train(task: Task) -> Outcome:
    """Fine-tune the model that was asked for."""
    settings = task.settings
    assert isinstance(settings, Spec)
    task = affordable(task)
    if settings.head_from == "probe":
        model = plug.load("vitrail.training.recipe", "probe").train(task).model.train()
    else:
        model = task.new_model(num_classes=len(task.sets.classes))
    if settings.lora:
        lora.wrap(model, settings.lora)
    progress = task.fit(model)
    if settings.lora:
        lora.merge(model)
    val = task.outputs(model, task.sets.val, "Validating")
    what = f"Low-rank updates of rank {settings.lora}" if settings.lora else "All weights"
    return Outcome(model, val, progress.step, (f"{what} fine-tuned for {progress.step:,} steps.",))
