"""An exported model as everything else sees a model: pictures in, logits out, and what they mean beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail import plug
from vitrail.data.transform import RawPixels
from vitrail.errors import ExportError, brief
from vitrail.machine import num_cores

RUNTIMES = "vitrail.engine.runtime"
KEY = "vitrail"  # under which a file's metadata keep what Vitrail knows of it
Run = Callable[[NDArray[Any]], NDArray[np.float32]]


class Exported(nn.Module):
    """A model in another engine. It scales pixels by itself, so it is given them as they are."""

    def __init__(self, file: Path, facts: dict[str, Any], run: Run, title: str) -> None:
        super().__init__()
        self.file, self.facts, self.run = file, facts, run
        self.name, self.labels = str(facts["name"]), tuple(map(str, facts["labels"]))
        self.engine = f"{title} {facts['precision']}"
        self.preprocess = RawPixels.parse(facts["preprocess"])
        self.changes: tuple[str, ...] = ()

    def forward(self, images: UInt8[Tensor, "B C Y X"]) -> Float[Tensor, "B K"]:
        return torch.from_numpy(self.run(as_input(images.permute(0, 2, 3, 1).numpy(), self.facts["takes"])))


def as_input(pixels: UInt8[np.ndarray, "B Y X C"], takes: str) -> NDArray[Any]:
    """Pixels as an export takes them: as they are, or as numbers from 0 to 1 with the channels first."""
    if takes == "float":
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255.0)
    return np.ascontiguousarray(pixels)


def exported_file(path: str | Path) -> Path | None:
    """The exported file that a path leads to: itself, or the one in its folder; None where there is none."""
    path = Path(path)
    names = {plug.load(RUNTIMES, entry).FILE for entry in plug.entries(RUNTIMES)}
    if path.is_file():
        return path if path.suffix in {Path(name).suffix for name in names} else None
    found = [path / name for name in sorted(names) if (path / name).is_file()]
    if len(found) > 1:
        raise ExportError(
            f"{path} holds several exported models.",
            got=", ".join(each.name for each in found) + ".",
            hint=f"one of them: {found[0]}.",
        )
    return found[0] if found else None


def open_exported(file: Path, *, threads: int | None = None) -> Exported:
    """Open an exported file with its engine."""
    entry = next(name for name in plug.entries(RUNTIMES) if Path(plug.load(RUNTIMES, name).FILE).suffix == file.suffix)
    runtime = plug.load(RUNTIMES, entry)
    try:
        facts, run = runtime.start(file, threads or num_cores())
    except ImportError as error:
        raise ExportError(
            f"{file} needs {runtime.TITLE}.", got=brief(error), hint=f"pip install {runtime.PACKAGE}."
        ) from None
    try:
        exported = Exported(file, facts, run, runtime.TITLE).eval()
        blank = np.zeros((1, *exported.preprocess.size, exported.preprocess.channels), dtype=np.uint8)
        answer = exported(exported.preprocess.normalise(blank))
        if answer.shape != (1, len(exported.labels)) or not isinstance(facts["calibration"], dict):
            raise TypeError(f"answers of shape {tuple(answer.shape)} to {len(exported.labels)} labels")
    except Exception as error:  # noqa: BLE001 - what it says of itself may be anything, and so may the engine's word for it
        raise damaged(file, error) from None
    return exported


def damaged(path: Path, error: BaseException) -> ExportError:
    """The error for a file that its engine cannot open, or that does not say what it is."""
    return ExportError(f"{path} is no model that vitrail export wrote.", got=brief(error), hint="exporting it anew.")
