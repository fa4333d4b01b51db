"""Predicted numbers: predictions.csv of a regression run, and the predictor that states a range."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.engine.exported import ImageModel
from vitrail.errors import RunError, brief
from vitrail.files import atomic_write, write_text
from vitrail.metric.numbers import NumberSummary
from vitrail.run.directory import check_table
from vitrail.run.predictions import SUMMARY

COLUMNS = ("split", "path", "true", "predicted", "low", "high")


class NumberRow(NamedTuple):
    """One image: its true number, and what the model predicts."""

    split: str
    path: str
    true: float
    predicted: float
    low: float | None
    high: float | None

    @property
    def error(self) -> float:
        """The absolute error."""
        return abs(self.predicted - self.true)


class NumberPrediction(NamedTuple):
    """The number predicted for one image, and the range that holds the true one."""

    target: str
    number: float
    low: float | None
    high: float | None
    unknown: bool = False

    @property
    def cells(self) -> dict[str, object]:
        """The prediction as a row of a table, by column."""
        numbers = {"value": self.number, "low": self.low, "high": self.high}
        return {name: "" if number is None else float(f"{number:.9g}") for name, number in numbers.items()}

    @property
    def line(self) -> str:
        """The prediction as a line of the terminal."""
        span = "" if self.low is None or self.high is None else f"{self.low:.4g} to {self.high:.4g}"
        return f"{self.number:>8.4g}  {span:<32}"

    def document(self) -> dict[str, Any]:
        """The prediction as a JSON object."""
        return {"target": self.target, "value": self.number, "low": self.low, "high": self.high}


class NumberPredictor:
    """A regression model with its calibrated range."""

    def __init__(self, model: ImageModel) -> None:
        self.model, self.target = model, model.labels[0]
        self.half_width = model.calibration.half_width

    @torch.inference_mode()
    def __call__(self, images: Float[Tensor, "B C Y X"]) -> list[NumberPrediction | None]:
        """Predict preprocessed images."""
        like = next(self.model.parameters(), None)
        return self.interpret(self.model(images if like is None else images.to(like)).float().cpu())

    def interpret(self, outputs: Float[Tensor, "B 1"]) -> list[NumberPrediction | None]:
        """Turn outputs into predictions; None where they are not finite."""
        return [
            NumberPrediction(self.target, number, *span(number, self.half_width))
            if torch.isfinite(torch.tensor(number))
            else None
            for number in outputs[:, 0].double().tolist()
        ]


def span(number: float, half_width: float | None) -> tuple[float | None, float | None]:
    """The range of a predicted number."""
    return (None, None) if half_width is None else (number - half_width, number + half_width)


def number_rows(
    split: str, names: Sequence[str], predicted: Tensor, true: Tensor, half_width: float | None
) -> list[NumberRow]:
    """A row for each image."""
    pairs = zip(names, true.tolist(), predicted.tolist(), strict=True)
    return [NumberRow(split, name, label, number, *span(number, half_width)) for name, label, number in pairs]


def write_number_rows(path: Path, rows: Iterable[NumberRow]) -> None:
    """Write the table atomically."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    table.writerow(COLUMNS)
    for row in rows:
        table.writerow([f"{cell:.9g}" if isinstance(cell, float) else "" if cell is None else cell for cell in row])
    with atomic_write(path, RunError) as part:
        part.write_bytes(text.getvalue().encode("utf-8", "surrogateescape"))  # file names need not be UTF-8


def read_number_rows(path: Path) -> list[NumberRow]:
    """Read the table of a run."""
    check_table(path)
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return [
                NumberRow(
                    cells["split"],
                    cells["path"],
                    *(float(cells[name]) for name in ("true", "predicted")),
                    *(float(cells[name]) if cells[name] else None for name in ("low", "high")),
                )
                for cells in csv.DictReader(file)
            ]
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise RunError(
            f"{path} cannot be read.", got=brief(error), hint="training again, with another --run."
        ) from None


def write_number_summaries(path: Path, facts: dict[str, Any], summaries: dict[str, NumberSummary]) -> None:
    """Write the scores of all splits, with the other facts that the report shows, to account.json."""
    document = {**facts, **{split: asdict(each) for split, each in summaries.items()}}
    write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", path / SUMMARY, RunError)
