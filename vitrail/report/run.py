"""The report of a run: one offline page, made of the run's own files and the pictures it was judged on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from vitrail.data.check import KINDS
from vitrail.data.table import Source
from vitrail.errors import RunError, brief
from vitrail.files import write_text
from vitrail.metric.calibration import Bin
from vitrail.pages import fill_template
from vitrail.report.chart import Line, lines, reliability_chart
from vitrail.report.overlay import overlay
from vitrail.report.thumbnails import Thumbnails
from vitrail.run.artefact import load
from vitrail.run.calibrate import read_calibration
from vitrail.run.directory import FOLDS, METRICS, stored_config
from vitrail.run.predictions import PREDICTIONS, SUMMARY, SUSPICIOUS, PredictionRow, read_predictions, suspects

REPORT, OUT_OF_FOLD = "report.html", "out_of_fold.csv"
SMALL, LARGE = 96, 176  # pixels of pictures
MAX_IMAGES = 500  # that a page carries, about 3 kB each
OF_CLASS = 3  # pictures of a class that were told right
NUM_MISTAKES, NUM_SUSPECTS = 12, 24
MAX_MATRIX = 40  # classes that a matrix can show
WEAK = 0.7  # recall below which the page warns of a class


def write_report(path: Path, source: Source, *, model: Any = None) -> None:
    """Write report.html of a run; a page that was there before stays until the new one is whole."""
    facts = run_facts(path)
    rows = [row for row in facts["rows"] if row.split == facts["split"]]
    doubted = suspects(
        [*facts["folded"], *(row for row in facts["rows"] if not facts["folded"] or row.split == "test")]
    )
    mistakes = sorted((row for row in rows if not row.right), key=lambda row: (-row.confidence, row.path))
    shown = _shown(rows, mistakes)
    wanted = [row.path for row in (*shown, *mistakes[:NUM_MISTAKES], *doubted[:NUM_SUSPECTS])]
    album = Thumbnails(source, wanted)
    model = model if model is not None else load(path)
    page = fill_template(
        "vitrail.report",
        "run.html",
        **facts,
        charts=curves([("", facts["metrics"])]),
        matrix=matrix(facts["account"], rows),
        mistakes=[
            (
                row,
                album.thumbnail(row.path, LARGE),
                overlay(model, album.content(row.path), model.labels.index(row.predicted), LARGE),
            )
            for row in mistakes[:NUM_MISTAKES]
            if not facts["facts"]["multi_label"]
        ],
        num_mistakes=len(mistakes),
        suspects=[(row, album.thumbnail(row.path, LARGE)) for row in doubted[:NUM_SUSPECTS]],
        num_suspects=len(doubted),
        times=round(SUSPICIOUS),
        reliability=[
            reliability_chart([Bin(*each) for each in facts["account"][key]], name)
            for name, key in (("Before", "uncalibrated_bins"), ("After", "bins"))
        ],
        weak_below=WEAK,
        weak=[each for each in facts["account"]["classes"] if each[1] and each[3] < WEAK],
        data=_script_data(shown, album),
        script=files("vitrail.report").joinpath("run.js").read_text(encoding="utf-8"),
    )
    write_text(page, path / REPORT, RunError)


def run_facts(path: Path) -> dict[str, Any]:
    """What the files of a run tell: its account, predictions, curves, settings and calibration."""
    try:
        told = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
        split = "test" if "test" in told else "val"
        metrics = [json.loads(line) for line in _lines(path / METRICS)]
        folds = json.loads((path / FOLDS).read_text(encoding="utf-8")) if (path / FOLDS).is_file() else None
        facts, result, account = told["facts"], told["result"], told[split]
        found = None if facts["findings"] is None else _by_kind(facts["findings"])
        facts.setdefault("multi_label", facts.get("several", False))  # its name in runs before 0.2
        for each in metrics:
            each["step"] = float(each["step"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise RunError(
            f"{path} holds no account of a run that has ended.",
            got=brief(error),
            hint="the directory of a run, trained to its end by this version.",
        ) from None
    return {
        "facts": facts,
        "result": result,
        "account": account,
        "split": split,
        "config": stored_config(path),
        "rows": read_predictions(path / PREDICTIONS),
        "folded": read_predictions(path / OUT_OF_FOLD) if folds else [],
        "folds": folds,
        "metrics": metrics,
        "calibration": read_calibration(path),
        "found": found,
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _by_kind(findings: Sequence[Sequence[str]]) -> list[tuple[str, str, int, list[str]]]:
    """Each kind of finding, what it means, how many, and the first few."""
    counts = Counter(each[1] for each in findings)
    first = {kind: [each[0] or each[2] for each in findings if each[1] == kind][:3] for kind in counts}
    return [(kind, KINDS.get(kind, ""), num, first[kind]) for kind, num in counts.most_common()]


def curves(runs: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> list[Any]:
    """Charts of losses and of scores by step, of one run or of several over each other."""
    losses, scores = [], []
    for name, metrics in runs:
        for key, title in (("loss", "training loss"), ("val_loss", "validation loss")):
            if len(runs) == 1 or key == "val_loss":
                losses.append(Line(name or title, _curve(metrics, key), dots=key == "val_loss"))
        for key, title in (("val_top1", "validation accuracy"), ("val_map", "validation mean average precision")):
            scores.append(Line(name or title, _curve(metrics, key), dots=True))
    made = []
    for each, up, percent in ((losses, "loss", False), (scores, "score", True)):
        drawn = [line for line in each if line.points]
        chart = lines(drawn, across="step", up=up, percent=percent)
        if chart is not None:
            made.append((chart, [line.name for line in drawn]))
    return made


def _curve(metrics: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(each["step"], each[key]) for each in metrics if each.get(key) is not None]


def matrix(account: dict[str, Any], rows: Sequence[PredictionRow]) -> dict[str, Any] | None:
    """The table of what was taken for what; of many classes, those that are confused most."""
    if not account["confused"] and account["map"] is not None:
        return None
    names = [each[0] for each in account["classes"]]
    if len(names) > MAX_MATRIX:
        often: Counter[str] = Counter()
        for truth, called, num in account["confused"]:
            often.update({truth: num, called: num})
        chosen = {name for name, _ in often.most_common(MAX_MATRIX)}
        names = [name for name in names if name in chosen] or names[:MAX_MATRIX]
    counts = Counter((row.label, row.predicted) for row in rows)
    table = [[counts[truth, called] for called in names] for truth in names]
    recall = {each[0]: each[3] for each in account["classes"]}
    return {
        "names": names,
        "table": table,
        "sums": [max(1, sum(counts[truth, called] for called in names)) for truth in names],
        "recall": [-1.0 if recall[name] is None else recall[name] for name in names],
        "all": len(account["classes"]),
    }


def _shown(rows: Sequence[PredictionRow], mistakes: Sequence[PredictionRow]) -> list[PredictionRow]:
    """The pictures that cells of the matrix open: mistakes, the surest first, and a few of each class told right."""
    kept = list(mistakes[: MAX_IMAGES * 4 // 5])
    seen: Counter[str] = Counter()
    for row in rows:
        if row.right and len(kept) < MAX_IMAGES and seen[row.label] < OF_CLASS:
            seen[row.label] += 1
            kept.append(row)
    return kept


def _script_data(shown: Sequence[PredictionRow], album: Thumbnails) -> str:
    """What the page's script draws from; inside a script element, "<" could end it."""
    pictures = [
        [row.label, row.predicted, row.path, round(row.confidence, 3), album.thumbnail(row.path, SMALL)]
        for row in shown
    ]
    return json.dumps(pictures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
