"""Fine-tuning as in the paper (arXiv 2010.11929, section 3.2): a new zero-initialised head, all weights trained.

    vitrail train pets.zip --weights deit_tiny_patch16_224/model.safetensors --recipe finetune --minutes 8

`model.image_size=384` fine-tunes at a higher resolution, with interpolated position embeddings. Lower layers have lower
learning rates (`layer_decay`). `lora=8` trains low-rank updates instead of the weights (arXiv 2106.09685) and merges
them at the end, so that the result is an ordinary model. `optimizer=sgd lr=0.03` is the paper's choice.
`head_from=probe` starts from the linear probe's head instead of zeros, which is better on small data
(arXiv 2202.10054).

Oxford Pets, 20 images of each of 37 breeds, DeiT-Ti/16, two cores: see docs/training.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vitrail import plug
from vitrail.training import lora
from vitrail.training.recipe.image.model_choice import choose_image_size
from vitrail.training.recipe.image.settings import FinetuneSettings
from vitrail.training.task import Outcome, Task


class Spec(FinetuneSettings):
    """The loop's settings, with defaults for small datasets."""

    lora: Annotated[int, Field(ge=0)] = 0
    """The rank of the updates; 0 to train the weights themselves."""
    head_from: Literal["zeros", "probe"] = "zeros"


NEEDS_WEIGHTS = True


def train(task: Task) -> Outcome:
    """Fine-tune the requested model."""
    settings = task.settings
    assert isinstance(settings, Spec)
    task = choose_image_size(task)
    if settings.head_from == "probe":
        model = plug.load("vitrail.training.recipe", "probe").train(task).model.train()
    else:
        model = task.kind.new_model(task)
    if settings.lora:
        lora.wrap(model, settings.lora)
    progress = task.fit(model)
    if settings.lora:
        lora.merge(model)
    val = task.infer(model, task.splits.val, "Validating")
    what = f"Low-rank updates of rank {settings.lora}" if settings.lora else "All weights"
    return Outcome(model, val, progress.step, (f"{what} fine-tuned for {progress.step:,} steps.",))
