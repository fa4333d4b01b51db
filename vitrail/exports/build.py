"""Builds one export: write it, open it with its engine, and compare its outputs with PyTorch's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vitrail import plug
from vitrail.engine.exported import RUNTIMES, ExportedModel, open_exported, prepare_input
from vitrail.errors import ExportError, brief
from vitrail.exports.budget import Budget, Progress
from vitrail.exports.images import ExportImages
from vitrail.exports.proof import Fidelity, compute_logits, measure_fidelity
from vitrail.exports.sensitivity import rank_layers
from vitrail.exports.tracing import Tracer
from vitrail.run.predictor import calibration_of, labels_of

FORMATS = "vitrail.exports.format"
MIN_CALIBRATION = 8  # images
Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Build:
    """An export that was written and compared with PyTorch, but not yet timed beside the others."""

    format: str
    precision: str
    float_layers: tuple[str, ...]
    """Layers of an int8 export that stay in float."""
    file: Path
    model: ExportedModel
    logits: Float[Tensor, "n K"]
    """Its outputs on the proof images."""
    fidelity: Fidelity
    write_seconds: float
    """The time to write and open it."""
    seconds_per_image: float
    """Its speed in batches, while it was compared."""

    @property
    def name(self) -> str:
        """Format and precision."""
        return f"{self.format} {self.precision}"


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What all exports of a model are built from and compared with."""

    tracer: Tracer
    images: ExportImages
    logits: Float[Tensor, "n K"]
    """PyTorch's outputs on the proof images."""
    seconds_per_image: float = 0.0
    """PyTorch's speed in batches."""
    max_drop: float = 0.005
    """The accuracy that may be lost, as a fraction."""
    merge: int = 0
    budget: Budget = field(default_factory=Budget)
    log: Log = lambda _: None
    progress: Progress | None = None

    @cached_property
    def sensitive_layers(self) -> list[str]:
        """The layers that lose most in 8 bits first, ranked on some of the calibration images."""
        model = self.tracer.graph.model
        return rank_layers(model, model.preprocess.normalise(self.images.calibration_pixels[:MIN_CALIBRATION]))


def missing_packages(format: str, precision: str) -> tuple[str, ...]:
    """The packages that a format and precision need and that are not installed."""
    names = {*plug.load(FORMATS, format).PACKAGES, plug.load(RUNTIMES, format).PACKAGE}
    names |= {"nncf"} if precision == "int8" else set()
    return tuple(sorted(name for name in names if importlib.util.find_spec(name) is None))


def check_format(format: str, precision: str, images: ExportImages | None = None) -> None:
    """Refuse an impossible format and precision before any work is done."""
    entry = plug.load(FORMATS, format)
    if precision not in entry.PRECISIONS:
        raise ExportError(
            f"{format} does not support {precision}.",
            got=f"--precision {precision}.",
            hint=f"{', '.join(entry.PRECISIONS)}.",
        )
    if missing := missing_packages(format, precision):
        raise ExportError(
            f"{format} needs packages that are not installed.",
            got=f"no {', '.join(missing)}.",
            hint=f"pip install {' '.join(missing)}.",
        )
    if precision == "int8" and images is not None and len(images.calibration_pixels) < MIN_CALIBRATION:
        raise ExportError(
            f"int8 needs at least {MIN_CALIBRATION} images to calibrate on.",
            got=f"{len(images.calibration_pixels)} images.",
            hint="--data VAL or --calibration DATA, with images like those it will see.",
        )


def build(
    context: BuildContext,
    format: str,
    precision: str,
    folder: Path,
    *,
    float_layers: tuple[str, ...] = (),
    reserved: float | None = None,
) -> Build:
    """Write an export into a folder and compare it with PyTorch.

    With `reserved`, it stops as soon as the comparison would cut into the last `reserved` seconds of the budget.
    """
    check_format(format, precision, context.images)
    name, budget = f"{format} {precision}", context.budget
    file = folder / plug.load(RUNTIMES, format).FILE
    metadata = {**metadata_for(context.tracer, precision), "merge": context.merge, "kept": float_layers}
    pixels = prepare_input(context.images.calibration_pixels, context.tracer.graph.input_dtype)
    try:
        start = budget.elapsed()
        plug.load(FORMATS, format).write(
            context.tracer, file, precision, metadata, pixels=pixels, float_layers=float_layers
        )
        model = _open(name, file)
        written = budget.elapsed()
        progress = context.progress if reserved is None else budget.watch(name, context.progress, reserved=reserved)
        logits = compute_logits(model, context.images.proof_pixels, progress)
        compared = budget.elapsed()
    except (ExportError, OSError):
        raise
    except Exception as error:  # exporters, NNCF and engines raise errors of their own, without a common base
        raise ExportError(
            f"{name} cannot be built from this model.", got=brief(error), hint="another --format or --precision."
        ) from error
    if bool(context.logits.isfinite().all()) and not bool(logits.isfinite().all()):
        raise ExportError(f"{name} returns NaN or infinity.", got="logits that are not finite.", hint="fp32.")
    return Build(
        format=format,
        precision=precision,
        float_layers=float_layers,
        file=file,
        model=model,
        logits=logits,
        fidelity=measure_fidelity(context.logits, logits, context.images),
        write_seconds=written - start,
        seconds_per_image=(compared - written) / len(logits),
    )


def _open(name: str, file: Path) -> ExportedModel:
    try:
        return open_exported(file)
    except ExportError as error:
        raise ExportError(
            f"{name} does not run on this machine.", got=error.got, hint="another --format or --precision."
        ) from error


def metadata_for(tracer: Tracer, precision: str) -> dict[str, Any]:
    """What an exported file says about itself."""
    model = tracer.graph.model
    return {
        "name": model.name or type(model).__name__,
        "precision": precision,
        "takes": tracer.graph.input_dtype,
        "dynamic": tracer.dynamic,
        "labels": list(labels_of(model)),
        "preprocess": model.preprocess.model_dump(mode="json"),
        "calibration": calibration_of(model).model_dump(mode="json"),
    }
