"""Exported models with the interface of any other model: images in, logits out, with labels and calibration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor, nn

from vitrail import documents, plug
from vitrail.about import About
from vitrail.calibration import Calibration
from vitrail.contract import Classifier
from vitrail.data.transform import RawPixels
from vitrail.errors import ExportError, brief
from vitrail.machine import avoid_broken_tiles, num_cores
from vitrail.sums import check_sum, read_sums

RUNTIMES = "vitrail.engine.runtime"
KEY = "vitrail"  # of Vitrail's entry in a file's metadata
InferFn = Callable[[NDArray[Any]], NDArray[np.float32]]


class Facts(documents.Document, extra="allow"):
    """What Vitrail writes into the metadata of an exported file, as far as it is needed to use it."""

    name: str
    precision: str
    takes: str
    labels: list[str]
    preprocess: dict[str, Any]
    calibration: dict[str, Any]
    compute: str = ""
    dynamic: bool = False


FACTS = TypeAdapter(Facts)


class ExportedModel(nn.Module):
    """A model that runs in another engine. Normalisation is part of its graph, so its input is raw pixels."""

    TAKES = ("image",)

    def __init__(self, file: Path, facts: dict[str, Any], run: InferFn, title: str) -> None:
        super().__init__()
        self.file, self.facts, self.run = file, facts, run
        self.engine = f"{title} {facts['precision']}"
        self.preprocess = RawPixels.parse(facts["preprocess"])
        self.about = About(
            name=str(facts["name"]),
            preprocess=self.preprocess,
            labels=tuple(map(str, facts["labels"])),
            calibration=Calibration.parse(facts["calibration"]),
        )

    @property
    def name(self) -> str:
        """The name in the catalogue."""
        return self.about.name

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.about.labels

    @property
    def calibration(self) -> Calibration:
        """How outputs become probabilities."""
        return self.about.calibration

    @property
    def changes(self) -> tuple[str, ...]:
        """Nothing was adapted."""
        return ()

    def forward(self, images: UInt8[Tensor, "B C Y X"]) -> Float[Tensor, "B K"]:
        return torch.from_numpy(self.run(prepare_input(images.permute(0, 2, 3, 1).numpy(), self.facts["takes"])))


ImageModel = Classifier | ExportedModel
"""A model that maps images to outputs, in PyTorch or in another engine."""


def prepare_input(pixels: UInt8[np.ndarray, "B Y X C"], takes: str) -> NDArray[Any]:
    """Pixels in the layout of an export: unchanged, or floats from 0 to 1 with the channels first."""
    if takes == "float":
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255.0)
    return np.ascontiguousarray(pixels)


def find_exported_file(path: str | Path) -> Path | None:
    """The exported file at a path: the file itself, or the one in the folder; None if there is none."""
    path = Path(path)
    names = {plug.load(RUNTIMES, entry).FILE for entry in plug.entries(RUNTIMES)}
    if path.is_file():
        return path if path.suffix in {Path(name).suffix for name in names} else None
    found = [path / name for name in sorted(names) if (path / name).is_file()]
    if len(found) > 1:
        raise ExportError(
            f"{path} contains more than one exported model.",
            got=", ".join(file.name for file in found) + ".",
            hint=f"one of them: {found[0]}.",
        )
    return found[0] if found else None


def open_exported(file: Path, *, threads: int | None = None) -> ExportedModel:
    """Open an exported file with its engine."""
    entry = next(name for name in plug.entries(RUNTIMES) if Path(plug.load(RUNTIMES, name).FILE).suffix == file.suffix)
    runtime = plug.load(RUNTIMES, entry)
    avoid_broken_tiles()
    check_sums(file)
    try:
        facts, run = runtime.start(file, threads or num_cores())
    except ImportError as error:
        raise ExportError(
            f"{file} requires {runtime.TITLE}.", got=brief(error), hint=f"pip install {runtime.PACKAGE}."
        ) from None
    try:
        exported = ExportedModel(file, facts, run, runtime.TITLE).eval()
        blank = np.zeros((1, *exported.preprocess.size, exported.preprocess.channels), dtype=np.uint8)
        logits = exported(exported.preprocess.normalise(blank))
        if logits.shape != (1, len(exported.labels)) or not isinstance(facts["calibration"], dict):
            raise TypeError(f"logits of shape {tuple(logits.shape)} for {len(exported.labels)} labels")
    except Exception as error:  # noqa: BLE001 - its metadata may be anything, and so may the engine's error
        raise invalid_export(file, error) from None
    return exported


def parse_facts(text: str | bytes) -> dict[str, Any]:
    """The metadata of an exported file; ValueError if it is not what an export has."""
    facts: dict[str, Any] = documents.fit_json(text, FACTS)
    return facts


def check_sums(file: Path) -> None:
    """Refuse an export any file of which was changed, if its folder lists their sums."""
    for name in read_sums(file.parent, ExportError):
        check_sum(file.with_name(name), ExportError)


def invalid_export(path: Path, error: BaseException) -> ExportError:
    """The error for a file that its engine cannot open, or whose metadata is missing or wrong."""
    return ExportError(
        f"{path} is not a model written by vitrail export.", got=brief(error), hint="exporting it again."
    )
