"""Reconstructions of one image with different patches hidden, as an offline page and as a figure."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from vitrail.data.decode import Pixels
from vitrail.inspection.reconstruction import Pretrained, Reconstruction, as_image, reconstruct
from vitrail.pages import render_template
from vitrail.percent import percent

SIDE = 224
NUM_DRAWS = 3
TITLES = ("visible", "predicted", "original")


@dataclass(frozen=True, kw_only=True)
class ReconstructionPage:
    """What a pretrained model expects behind hidden patches of an image, for several draws of them."""

    name: str
    model: str
    target: str
    draws: Sequence[Reconstruction]

    @property
    def summary(self) -> str:
        """The result in words."""
        losses = ", ".join(f"{each.loss:.3f}" for each in self.draws)
        return f"loss {losses} on hidden patches ({percent(self.draws[0].hidden, 0)} of the image)"

    def page(self) -> str:
        """The page."""
        return render_template(
            "vitrail.inspection",
            "reconstruction_page.html",
            name=self.name,
            model=self.model,
            target=self.target,
            hidden=percent(self.draws[0].hidden, 0),
            draws=[(each.loss, [(title, _data_url(pixels)) for title, pixels in _panels(each)]) for each in self.draws],
        )

    def figure(self) -> Figure:
        """The figure: a row for each draw."""
        figure = Figure(figsize=(6.0, 2.1 * len(self.draws)), layout="constrained")
        axes = figure.subplots(len(self.draws), len(TITLES), squeeze=False)
        for row, each in zip(axes, self.draws, strict=True):
            for axis, (title, pixels) in zip(row, _panels(each), strict=True):
                axis.imshow(as_image(pixels, SIDE))
                axis.set_title(title if title != "predicted" else f"predicted, loss {each.loss:.3f}", fontsize=9)
                axis.axis("off")
        return figure


def explain_reconstruction(pretrained: Pretrained, pixels: Pixels, name: str) -> ReconstructionPage:
    """Hide different patches of an image a few times, and predict them."""
    draws = [reconstruct(pretrained, pixels, seed=seed) for seed in range(NUM_DRAWS)]
    return ReconstructionPage(name=name, model=pretrained.model.name, target=pretrained.masking.target, draws=draws)


def _panels(found: Reconstruction) -> list[tuple[str, Pixels]]:
    return list(zip(TITLES, (found.masked, found.predicted, found.original), strict=True))


def _data_url(pixels: Pixels) -> str:
    file = io.BytesIO()
    as_image(pixels, SIDE).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
