"""The parts of one thing are alike: the tokens of eye and ear more than those of eye and background."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.pretrained import OutlinedTokens
from vitrail.benchmark.verdict import Chart, Contrast, Curve, Measured

DECK = "002"
CLAIM = "Tokens of parts of one thing are alike: eye and ear have a larger dot product than eye and background."
PAPER = "The deck gives it as intuition for attention (z_eye z_ear > z_eye z_background), without a measurement."
EXPERIMENT = (
    "DeiT-Ti on 20 images of Oxford Pets whose animals were outlined by hand. How often a patch inside the outline is "
    "more like another one inside than like a patch outside that is equally far away, over all blocks (chance 50 %). "
    "Controls: the outlines of other images, and random weights, three seeds. Intervals are over images."
)


def experiments(seed: int) -> dict[str, Experiment]:
    """A third of the images, and one set of random weights."""
    return {"outlines": OutlinedTokens(seed)}


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether parts are alike, because of the outline, because of training; and eye and ear in particular."""

    def every(field: str) -> list[float]:
        return [value for seed in measured for value in seed["outlines"][field]]

    def above(field: str, other: str) -> tuple[float, ...]:
        return tuple(one - two for one, two in zip(every(field), every(other), strict=True))

    return [
        Contrast("parts of the animal are more alike than chance", tuple(each - 0.5 for each in every("matched"))),
        Contrast("more than within the outline of another image", above("matched", "control")),
        Contrast("more than with random weights", above("matched", "random_matched")),
        Contrast("eye and ear are more alike than chance", tuple(each - 0.5 for each in every("eye_ear_matched"))),
    ]


def chart(measured: Measured) -> Chart:
    """How alike parts are, by block."""
    curves = tuple(
        Curve(
            title,
            tuple(
                (block, tuple(100 * seed["outlines"][field][block] for seed in measured))
                for block in range(len(measured[0]["outlines"][field]))
            ),
        )
        for title, field in (("DeiT-Ti", "by_block"), ("random weights", "random_by_block"))
    )
    return Chart(curves, "block (0: before the first)", y_label="parts more alike than background (%)")
