"""A teacher, best a convolutional one, helps a Vision Transformer on small data."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.guided import Distilled
from vitrail.benchmark.networks import conv_stem, resnet, vit
from vitrail.benchmark.verdict import Chart, Contrast, Measured, contrast, percent_curve

DECK = "003"
CLAIM = (
    "Learning from a teacher makes a Vision Transformer data-efficient, and a convolutional teacher is the best one."
)
PAPER = (
    "DeiT-B reaches 81.8 % on ImageNet without a teacher and 83.4 % with a RegNet as its teacher; a transformer as its "
    "teacher gives less (arXiv 2012.12877)."
)
EXPERIMENT = (
    "A ViT of 0.1 million parameters on 2,000 images of CIFAR-10 at 16 x 16 pixels, without a teacher and with hard "
    "labels from one that was trained on the same images: a ResNet, or a ViT with a convolutional stem. For the same "
    "number of steps, and for the same compute: the teacher's passes count. Longer comparisons are in "
    "docs/few-labels.md."
)
NUM_IMAGES, NUM_SEEN, TERAFLOPS = 2000, 98_000, 1.0
NAMES = {
    "plain": "no teacher",
    "steps": "ResNet, equal steps",
    "compute": "ResNet, equal compute",
    "transformer": "ViT, equal steps",
}


def experiments(seed: int) -> dict[str, Experiment]:
    """Without a teacher, with a ResNet at equal steps and at equal compute, and with a transformer."""
    plain = vit("medium", num_images=NUM_IMAGES, num_seen=NUM_SEEN, seed=seed)
    fewer = vit("medium", num_images=NUM_IMAGES, teraflops=plain.cost, seed=seed)
    convolutional = resnet("medium", num_images=NUM_IMAGES, teraflops=TERAFLOPS, seed=seed)
    transformer = conv_stem("medium", num_images=NUM_IMAGES, teraflops=TERAFLOPS, seed=seed)
    return {
        "plain": plain,
        "steps": Distilled(plain, convolutional),
        "compute": Distilled(fewer, convolutional),
        "transformer": Distilled(plain, transformer),
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether a teacher helps, and whether the convolutional one helps more."""
    return [
        contrast("a teacher helps at equal steps", measured, "steps", "plain"),
        contrast("a teacher helps at equal compute", measured, "compute", "plain"),
        contrast("the ResNet is a better teacher than the ViT", measured, "steps", "transformer"),
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy of the four."""
    curves = (percent_curve(name, measured, [(index, key)]) for index, (key, name) in enumerate(NAMES.items()))
    return Chart(tuple(curves), "teacher", x_names=tuple(NAMES.values()))
