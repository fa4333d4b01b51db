"""With more data, a Vision Transformer catches up with a ResNet, and overtakes it."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import resnet, vit
from vitrail.benchmark.verdict import Chart, Contrast, Measured, contrast, percent_curve

DECK = "002, 003, 004"
CLAIM = "On small data sets a ResNet is better; as data grows, the Vision Transformer catches up and overtakes it."
PAPER = "ViT-L/16 is below BiT when pretrained on ImageNet, level on ImageNet-21k, and above it on JFT-300M."
EXPERIMENT = (
    "CIFAR-10 at 16 x 16 pixels, 500 to 50,000 training images, 1 teraflop for every run: a ViT of 0.1 million "
    "parameters against a ResNet of BiT's units; both see each image as often as the compute allows."
)
NUMBERS = (500, 2000, 10_000, 50_000)
TERAFLOPS = 1.0


def experiments(seed: int) -> dict[str, Experiment]:
    """Both networks on every number of images."""
    return {
        f"{kind} {num}": make("medium", num_images=num, teraflops=TERAFLOPS, seed=seed)
        for kind, make in (("vit", vit), ("resnet", resnet))
        for num in NUMBERS
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether the gap closes, and whether it turns."""
    fewest, most = NUMBERS[0], NUMBERS[-1]
    gaps = [
        [seed[f"vit {num}"]["accuracy"] - seed[f"resnet {num}"]["accuracy"] for num in (fewest, most)]
        for seed in measured
    ]
    return [
        contrast(f"with {fewest:,} images the ResNet is better", measured, f"resnet {fewest}", f"vit {fewest}"),
        Contrast(
            f"the ViT gains on the ResNet from {fewest:,} to {most:,} images",
            tuple(after - before for before, after in gaps),
        ),
        contrast(f"with {most:,} images the ViT is better", measured, f"vit {most}", f"resnet {most}"),
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy by the number of images."""
    names = {"vit": "ViT", "resnet": "ResNet"}
    curves = (
        percent_curve(name, measured, [(num, f"{kind} {num}") for num in NUMBERS]) for kind, name in names.items()
    )
    return Chart(tuple(curves), "training images", log_x=True)
