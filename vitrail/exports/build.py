"""One export from model to proven file: write, prove, and keep in float what eight bits would spoil."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vitrail import plug
from vitrail.engine.exported import RUNTIMES, Exported, as_input, open_exported
from vitrail.errors import ExportError, brief
from vitrail.exports.images import Pictures, Progress
from vitrail.exports.proof import Faith, faith_of, logits_of
from vitrail.exports.sensitivity import worst_layers
from vitrail.exports.traced import Traced
from vitrail.run.predictor import calibration_of, labels_of

FORMATS = "vitrail.exports.format"
KEPT = (2, 4, 8, 12)  # layers that stay in float, attempt after attempt
MOST = 4  # of so many layers one may stay
FAR = 10  # times the budget: a few layers more in float will not do
FEWEST = 8  # pictures from which ranges are learned
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Made:
    """An export that was written and proven, but not yet measured."""

    format: str
    precision: str
    file: Path
    opened: Exported
    faith: Faith
    after: Float[Tensor, "n K"]
    """What it says to the judged pictures."""
    kept: tuple[str, ...]
    """Layers that stayed in float."""


@dataclass(frozen=True)
class Trial:
    """What all forms of a model are made of and held against."""

    traced: Traced
    pictures: Pictures
    before: Float[Tensor, "n K"]
    """What the model says to the judged pictures in PyTorch."""
    max_drop: float = 0.005
    """The share of accuracy that may be lost."""
    merge: int = 0
    say: Say = lambda _: None
    progress: Progress | None = None

    @cached_property
    def worst_layers(self) -> list[str]:
        """The layers that suffer most from eight bits, by some of the pictures that ranges are learned from."""
        model = self.traced.graph.model
        return worst_layers(model, model.preprocess.normalise(self.pictures.calibration[:FEWEST]))


def absent(form: str, precision: str) -> tuple[str, ...]:
    """The packages that a format and precision need and that are not installed."""
    names = {*plug.load(FORMATS, form).PACKAGES, plug.load(RUNTIMES, form).PACKAGE}
    names |= {"nncf"} if precision == "int8" else set()
    return tuple(sorted(name for name in names if importlib.util.find_spec(name) is None))


def check_asked(form: str, precision: str, pictures: Pictures | None = None) -> None:
    """Refuse what a format cannot be, before anything is traced."""
    entry = plug.load(FORMATS, form)
    if precision not in entry.PRECISIONS:
        raise ExportError(
            f"{form} is not written in {precision}.",
            got=f"--precision {precision}.",
            hint=f"{', '.join(entry.PRECISIONS)}.",
        )
    if missing := absent(form, precision):
        raise ExportError(
            f"{form} needs packages that are not installed.",
            got=f"no {', '.join(missing)}.",
            hint=f"pip install {' '.join(missing)}.",
        )
    if precision == "int8" and pictures is not None and len(pictures.calibration) < FEWEST:
        raise ExportError(
            "int8 learns its ranges from pictures.",
            got=f"{len(pictures.calibration)} of them.",
            hint="--data VAL, or --calibration DATA, with pictures like those that it will see.",
        )


def make(trial: Trial, form: str, precision: str, folder: Path) -> Made:
    """Write an export into a folder and prove it; of int8, keep more and more of the worst layers in float.

    One that loses more than the budget in the end is refused.
    """
    check_asked(form, precision, trial.pictures)
    file = folder / plug.load(RUNTIMES, form).FILE
    tried: list[tuple[Faith, tuple[str, ...]]] = []
    for kept in _attempts(trial, precision, tried):
        trial.say(f"Writing and proving {form} {precision}" + (f", {len(kept)} layers in float" if kept else ""))
        opened, after = _written(trial, form, precision, file, kept)
        faith = faith_of(trial.before, after, trial.pictures)
        tried.append((faith, kept))
        if faith.drop <= trial.max_drop:
            return Made(format=form, precision=precision, file=file, opened=opened, faith=faith, after=after, kept=kept)
    raise _refused(f"{form} {precision}", tried, trial.worst_layers if precision == "int8" else [], trial.max_drop)


def _attempts(
    trial: Trial, precision: str, tried: Sequence[tuple[Faith, tuple[str, ...]]]
) -> Iterator[tuple[str, ...]]:
    """The layers that stay in float: none, then more and more of the worst; where far too much was lost without them,
    at once as many as may.
    """
    yield ()
    if precision == "int8":
        numbers = [num for num in KEPT if num <= len(trial.worst_layers) // MOST]
        far = tried[0][0].drop > FAR * max(trial.max_drop, 0.005)
        yield from (tuple(trial.worst_layers[:num]) for num in (numbers[-1:] if far else numbers))


def _written(
    trial: Trial, form: str, precision: str, file: Path, kept: tuple[str, ...]
) -> tuple[Exported, Float[Tensor, "n K"]]:
    """An export as its engine opens it, and what it says to the judged pictures."""
    facts = {**facts_for(trial.traced, precision), "merge": trial.merge, "kept": kept}
    pixels = as_input(trial.pictures.calibration, trial.traced.graph.takes)
    try:
        plug.load(FORMATS, form).write(trial.traced, file, precision, facts, pixels=pixels, keep=kept)
        opened = open_exported(file)
        after = logits_of(opened, trial.pictures.judged, trial.progress)
    except (ExportError, OSError):
        raise
    except Exception as error:  # exporters, NNCF and engines have their own, without a common name
        raise ExportError(
            f"{form} {precision} cannot be made of this model.",
            got=brief(error),
            hint="another --format or --precision.",
        ) from error
    if bool(trial.before.isfinite().all()) and not bool(after.isfinite().all()):
        raise ExportError(f"{form} {precision} gives NaN or infinity.", got="logits that are not finite.", hint="fp32.")
    return opened, after


def facts_for(traced: Traced, precision: str) -> dict[str, Any]:
    """What an exported file says of itself."""
    model = traced.graph.model
    return {
        "name": getattr(model, "name", "") or type(model).__name__,
        "precision": precision,
        "takes": traced.graph.takes,
        "dynamic": traced.dynamic,
        "labels": list(labels_of(model)),
        "preprocess": model.preprocess.model_dump(mode="json"),
        "calibration": calibration_of(model).model_dump(mode="json"),
    }


def _refused(name: str, tried: list[tuple[Faith, tuple[str, ...]]], order: list[str], max_drop: float) -> ExportError:
    faith, kept = min(tried, key=lambda each: each[0].drop)
    known = faith.top1_before is not None and faith.top1_after is not None
    lost = f"{100 * faith.drop:.2f} points on {faith.n:,} pictures" if known else f"{1 - faith.agreement:.1%} of labels"
    figures = f" ({faith.top1_before:.1%} before, {faith.top1_after:.1%} after)" if known else ""
    worst = f" Worst layers: {', '.join(order[:4])}." if order else ""
    fewer = f" with {len(kept)} layers kept in float" if kept else ""
    return ExportError(
        f"{name} loses more than {100 * max_drop:g} points.",
        got=f"{lost}{figures}{fewer}.{worst}",
        hint="calibration pictures like those that it will see (--calibration), another --precision, or --max-drop.",
    )
