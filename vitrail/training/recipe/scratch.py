"""Training from scratch, on data too small for a plain Vision Transformer.

    vitrail train cifar10.npz --recipe scratch --minutes 5

CIFAR-10, two cores: 80.5 % test accuracy in 5 minutes, everything included (three seeds, 80.1 to 80.8 %), where timm's
plain ViT reaches 38 %; 90.2 % in 30 minutes. With AVX2 only, 75.8 % in 5 minutes (three seeds, 74.9 to 76.3 %), where
timm's plain ViT reaches 42 % and logistic regression on pixels 41 % (benchmarks/scratch-5-avx2.json); Fashion-MNIST
89.2 % (three seeds, 89.0 to 89.5 %), where they reach 57 % and 86 % (benchmarks/fashion-5-avx2.json).

The ingredients: a convolutional stem (arXiv 2106.14881), mean pooling instead of a class token, Muon, smaller images at
the start (arXiv 2104.00298), an EMA of the weights.
"""

from __future__ import annotations

from vitrail.data.table import Source
from vitrail.training.recipe.image.augmentation_choice import choose_augmentation
from vitrail.training.recipe.image.candidates import list_candidates
from vitrail.training.recipe.image.model_choice import choose_model
from vitrail.training.recipe.image.settings import ScratchSettings
from vitrail.training.task import Outcome, Task


class Spec(ScratchSettings):
    """The loop's settings, with defaults for training from scratch."""


def suggest(source: Source) -> str:
    """Suggest a small model with a convolutional stem and 16 to 64 tokens for images of this size."""
    return list_candidates(source)[0].name


def train(task: Task) -> Outcome:
    """Train the requested model, or one that suits the images and the time."""
    task = choose_model(task, list_candidates(task.splits.train))
    model = task.kind.new_model(task)
    task = choose_augmentation(task, model)
    progress = task.fit(model)
    val = task.infer(model, task.splits.val, "Validating")
    return Outcome(model, val, progress.step, (f"Trained from scratch for {progress.step:,} steps.",))
