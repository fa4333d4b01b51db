"""The report of a run: one offline page, built from the run's files and the images it was evaluated on."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitrail import documents
from vitrail.contract import Classifier
from vitrail.data.check import KINDS
from vitrail.data.table import IMAGE, Source
from vitrail.errors import RunError, brief
from vitrail.files import write_text
from vitrail.metric.calibration import Bin
from vitrail.metric.scaling import read_scaling
from vitrail.pages import render_template
from vitrail.report.chart import Line, SecondAxis, line_chart, reliability_chart
from vitrail.report.overlay import render_overlay
from vitrail.report.percent import percent, percent_range
from vitrail.report.scaling import scaling_values
from vitrail.report.thumbnails import Thumbnails
from vitrail.run.artefact import ALIGNMENT, CLIPS, kind_of, load
from vitrail.run.calibrate import read_calibration
from vitrail.run.directory import (
    CONFIG,
    FOLDS,
    METRICS,
    RESULT,
    SCALING,
    STAGES,
    check_table,
    invalid,
    read_document,
    stored_config,
)
from vitrail.run.predictions import PREDICTIONS, SUMMARY, SUSPECT_RATIO, PredictionRow, read_predictions, suspects
from vitrail.run.schema import ACCOUNT_FILE, CLASSIFIER_ACCOUNT_FILE, FOLDS_FILE, METRICS_LINE, SCALING_FILE
from vitrail.run.text_model import TEXT_KINDS

CLASSIFIERS = ("classification", CLIPS)
REPORT, OUT_OF_FOLD = "report.html", "out_of_fold.csv"
SMALL_SIDE, LARGE_SIDE = 96, 176  # pixels of thumbnails
MAX_IMAGES = 500  # on a page, about 3 kB each
NUM_CORRECT = 3  # correctly classified images shown per class
NUM_ERRORS, NUM_SUSPECTS = 12, 24
MAX_CLASSES = 40  # in the confusion matrix
DATA_CHECK = re.compile(r"The data check found [^.]*\.\s*")  # has its own section
WEAK_RECALL = 0.7  # below which the page warns about a class
BITS = SecondAxis("bits per token", 1 / math.log(2))
VAL_SCORES = {
    "val_top1": "validation accuracy",
    "val_map": "validation mean average precision",
    "val_accuracy": "validation accuracy on hidden tokens",
    "val_token_accuracy": "validation accuracy on next tokens",
    "val_knn": "nearest neighbours of the features",
    "val_linear": "linear model on the features",
    "val_recall": "validation recall at 1",
}


def write_report(path: Path, source: Source, *, model: Classifier | None = None) -> None:
    """Write report.html of a run; an existing page stays until the new one is complete."""
    run = read_run(path)
    noun = "images" if source.modalities == IMAGE else "clips"
    rows = [row for row in run["rows"] if row.split == run["split"]]
    unseen = [*run["out_of_fold"], *(row for row in run["rows"] if not run["out_of_fold"] or row.split == "test")]
    suspect_rows = suspects(unseen)
    errors = sorted((row for row in rows if not row.right), key=lambda row: (-row.confidence, row.path))
    selected = _select_images(rows, errors)
    shown = (*selected, *errors[:NUM_ERRORS], *suspect_rows[:NUM_SUSPECTS])
    thumbnails = Thumbnails(source, [row.path for row in shown])
    model = model if model is not None else load(path)
    trainings = _trainings(path, run)
    page = render_template(
        "vitrail.report",
        "run.html",
        **run,
        noun=noun,
        story=DATA_CHECK.sub("", run["facts"]["story"]),
        charts=training_charts(trainings),
        overfits=_ends_above(trainings[-1][1]) if trainings else False,
        matrix=confusion_table(run["summary"], rows),
        errors=[
            (
                row,
                thumbnails.thumbnail(row.path, LARGE_SIDE),
                render_overlay(model, thumbnails.content(row.path), model.labels.index(row.predicted), LARGE_SIDE)
                if source.modalities == IMAGE
                else "",
            )
            for row in errors[:NUM_ERRORS]
            if not run["facts"]["multi_label"]
        ],
        num_errors=len(errors),
        num_unknown=sum(row.unknown for row in rows),
        suspects=[(row, thumbnails.thumbnail(row.path, LARGE_SIDE)) for row in suspect_rows[:NUM_SUSPECTS]],
        num_suspects=len(suspect_rows),
        suspect_ratio=round(SUSPECT_RATIO),
        reliability=[
            (name, reliability_chart([Bin(*each) for each in run["summary"][key]], name.capitalize()))
            for name, key in (("uncalibrated", "uncalibrated_bins"), ("calibrated", "bins"))
        ],
        weak_recall=WEAK_RECALL,
        weak_classes=[each for each in run["summary"]["classes"] if each[1] and each[3] < WEAK_RECALL],
        data=_script_data(selected, thumbnails),
        script=files("vitrail.report").joinpath("run.js").read_text(encoding="utf-8"),
        **_more_data(path),
        percent=percent,
        percent_range=percent_range,
    )
    write_text(page, path / REPORT, RunError)


def _more_data(path: Path) -> dict[str, Any]:
    """The section on what more images would bring; empty for a run without that forecast."""
    if not (path / SCALING).is_file():
        return {"scaling": None}
    document = read_document(path / SCALING, SCALING_FILE)
    try:
        return scaling_values(read_scaling(document))
    except (ValueError, KeyError, TypeError) as error:
        raise invalid(path / SCALING, error) from None


def read_run(path: Path) -> dict[str, Any]:
    """Read the files of a finished run: summary, predictions, curves, settings and calibration."""
    run = read_files(path, kind="classification" if kind_of(path) != CLIPS else CLIPS)
    run["facts"].setdefault("multi_label", run["facts"].get("several", False))  # its name in runs before 0.2
    rows = read_predictions(path / PREDICTIONS)
    return {**run, "rows": rows, "out_of_fold": read_predictions(path / OUT_OF_FOLD) if run["folds"] else []}


def read_files(path: Path, *, kind: str) -> dict[str, Any]:
    """Read the files that runs of every kind have; refuse a run of another kind."""
    if (path / CONFIG).is_file() and not (path / SUMMARY).is_file():
        if (path / RESULT).is_file():
            raise RunError(
                f"{path} was trained by an earlier version, which kept less of it.",
                hint="training it again in another --run.",
            )
        raise RunError(f"{path} is not a finished run.", hint="the command that started it again: it resumes.")
    try:
        (path / SUMMARY).stat()  # a folder that is no run has none
        schema = CLASSIFIER_ACCOUNT_FILE if kind in CLASSIFIERS else ACCOUNT_FILE
        config = stored_config(path) or {}
        found = config.get("kind", "classification")
        if found != kind:
            raise RunError(f"{path} is not a run of the kind {kind}.", got=f"a run of the kind {found}.")
        document = read_document(path / SUMMARY, schema)
        facts, result = document["facts"], document["result"]
        scores = result if kind in (*TEXT_KINDS, ALIGNMENT) else document
        split = "test" if scores.get("test") else "val"
        metrics = _read_metrics(path / METRICS)
        folds = read_document(path / FOLDS, FOLDS_FILE) if (path / FOLDS).is_file() else None
        summary = scores[split]
        findings = None if facts["findings"] is None else _group_findings(facts["findings"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RunError(
            f"{path} is not a finished run.",
            got=brief(error),
            hint="the directory of a run that this version has trained to the end.",
        ) from None
    return {
        "facts": facts,
        "result": result,
        "summary": summary,
        "split": split,
        "config": config,
        "folds": folds,
        "metrics": metrics,
        "calibration": read_calibration(path),
        "findings": findings,
    }


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; each has a step."""
    check_table(path)
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    metrics = [documents.fit_json(line, METRICS_LINE) for line in lines]
    for each in metrics:
        each["step"] = float(each["step"])
    return metrics


def _trainings(path: Path, run: Mapping[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The name and the metrics of each stage in which a model was trained; of a single training without its name."""
    if run["metrics"]:
        return [("", run["metrics"])]
    names = [str(name) for name in run["config"].get("stages", ())]
    found = [(name, metrics) for name in names if (metrics := _read_metrics(path / STAGES / name / METRICS))]
    return [("", found[0][1])] if len(found) == 1 else found


def _ends_above(metrics: Sequence[dict[str, Any]]) -> bool:
    """Whether the last validation loss is higher than the last training loss."""
    last: dict[str, Any] = {}
    for each in metrics:
        last |= {key: value for key, value in each.items() if value is not None}
    return "val_loss" in last and "loss" in last and last["val_loss"] > last["loss"]


def _group_findings(findings: Sequence[Sequence[str]]) -> list[tuple[str, str, int, list[str]]]:
    """Each kind of finding with its meaning, its count and the first few examples."""
    counts = Counter(each[1] for each in findings)
    examples = {kind: [each[0] or each[2] for each in findings if each[1] == kind][:3] for kind in counts}
    return [(kind, KINDS.get(kind, ""), num, examples[kind]) for kind, num in counts.most_common()]


def training_charts(
    runs: Sequence[tuple[str, Sequence[dict[str, Any]]]], *, per_token: bool = False
) -> list[tuple[Markup, list[str]]]:
    """Charts of losses and of scores by step, for one run or several; losses `per_token` in nats and in bits."""
    losses, scores, errors = [], [], []
    for name, metrics in runs:
        for key, title in (("loss", "training loss"), ("val_loss", "validation loss")):
            if len(runs) == 1 or key == "val_loss":
                losses.append(Line(name or title, _points(metrics, key), dots=key == "val_loss"))
        for key, title in VAL_SCORES.items():
            scores.append(Line(name or title, _points(metrics, key), dots=True))
        errors.append(Line(name or "validation mean absolute error", _points(metrics, "val_mae"), dots=True))
    charts = []
    loss_label, second_axis = ("nats per token", BITS) if per_token else ("loss", None)
    for lines, y_label, as_percent, second in (
        (losses, loss_label, False, second_axis),
        (scores, "score", True, None),
        (errors, "error", False, None),
    ):
        plotted = [line for line in lines if line.points]
        chart = line_chart(plotted, x_label="step", y_label=y_label, as_percent=as_percent, second_axis=second)
        if chart is not None:
            charts.append((chart, [line.name for line in plotted]))
    return charts


def _points(metrics: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(each["step"], each[key]) for each in metrics if each.get(key) is not None]


def confusion_table(summary: dict[str, Any], rows: Sequence[PredictionRow]) -> dict[str, Any] | None:
    """The confusion matrix, reduced to the most confused classes if there are many; None for multi-label data."""
    if not summary["confused"] and summary["map"] is not None:
        return None
    names = [each[0] for each in summary["classes"]]
    if len(names) > MAX_CLASSES:
        num_confused: Counter[str] = Counter()
        for label, predicted, num in summary["confused"]:
            num_confused.update({label: num, predicted: num})
        chosen = {name for name, _ in num_confused.most_common(MAX_CLASSES)}
        names = [name for name in names if name in chosen] or names[:MAX_CLASSES]
    counts = Counter((row.label, row.predicted) for row in rows)
    table = [[counts[label, predicted] for predicted in names] for label in names]
    recall = {each[0]: each[3] for each in summary["classes"]}
    return {
        "names": names,
        "table": table,
        "sums": [max(1, sum(row)) for row in table],
        "recall": [-1.0 if recall[name] is None else recall[name] for name in names],
        "num_classes": len(summary["classes"]),
    }


def _select_images(rows: Sequence[PredictionRow], errors: Sequence[PredictionRow]) -> list[PredictionRow]:
    """The images that cells of the matrix show: the most confident errors, and a few correct ones of each class."""
    selected = list(errors[: MAX_IMAGES * 4 // 5])
    num_correct: Counter[str] = Counter()
    for row in rows:
        if row.right and len(selected) < MAX_IMAGES and num_correct[row.label] < NUM_CORRECT:
            num_correct[row.label] += 1
            selected.append(row)
    return selected


def _script_data(selected: Sequence[PredictionRow], thumbnails: Thumbnails) -> str:
    """The images as JSON for the page's script; "<" is escaped because it could end the script element."""
    images = [
        [row.label, row.predicted, row.path, round(row.confidence, 3), thumbnails.thumbnail(row.path, SMALL_SIDE)]
        for row in selected
    ]
    return json.dumps(images, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
