"""Why does a model say so?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vitrail.errors import InspectionError
from vitrail.files import replacing, write_text
from vitrail.inspection.explanation import TOP
from vitrail.inspection.explanation import explain as explain_one
from vitrail.run.opened import open_model

DOTS = 160  # an inch, of the still picture


def explain(
    model: str | Path,
    images: Sequence[str | Path],
    *,
    weights: str | Path | None = None,
    out: str | Path = "explained",
    class_name: str | int | None = None,
    methods: Sequence[str] | None = None,
    top: int = TOP,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Write a page and a still picture for each image into the folder `out`; the files are told."""
    network = open_model(model, weights)
    if not network.spec.num_classes:
        raise InspectionError("this model has no classifier to explain.", got=f"{model}.", hint="fine-tuned weights.")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InspectionError(f"{folder} is no folder.", got="a file.", hint="another --out.")
    written: list[Path] = []
    taken: set[str] = set()
    for number, image in enumerate(images, start=1):
        explanation = explain_one(network, image, class_name=class_name, methods=methods, top=top)
        stem = Path(image).stem if Path(image).stem not in taken else f"{Path(image).stem}-{number}"
        taken.add(stem)
        folder.mkdir(parents=True, exist_ok=True)
        page, still = folder / f"{stem}.explained.html", folder / f"{stem}.explained.png"
        write_text(explanation.page(), page, InspectionError)
        with replacing(still, InspectionError) as part:
            explanation.figure().savefig(
                part, format="png", dpi=DOTS, pil_kwargs={"compress_level": 4}
            )  # a third of the time
        written += [page, still]
        if progress is not None:
            progress(number, len(images))
    return written
