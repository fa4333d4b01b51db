"""Compare runs on one offline page: scores, curves, settings, and whether the difference is significant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.errors import RunError
from vitrail.files import write_text
from vitrail.metric.interval import Interval
from vitrail.metric.paired import Paired
from vitrail.pages import render_template
from vitrail.report.percent import percent, percent_range
from vitrail.report.run import read_run, training_charts
from vitrail.run.directory import flatten
from vitrail.run.predictions import compare_rows

LEFT_OUT = (
    "command",
    "request.data_fingerprint",
    "decisions.plan.summary",
    "decisions.plan.told",  # the summary in older runs
    "decisions.plan.images_per_second",
    "decisions.plan.evaluated_per_second",
)  # settings whose differences mean nothing
MAX_NAMED = 5  # classes in an error message
IN_MEMORY = "X"  # the origin of images that VitClassifier got as arrays


class RunEntry(NamedTuple):
    """The scores of one run."""

    name: str
    run: Path
    model: str
    recipe: str
    score: float
    """Accuracy, or mean average precision for multi-label data."""
    interval: Interval
    n: int
    split: str
    ece: float
    seconds: float
    params: int


class RunPair(NamedTuple):
    """A run against the first one, on the images that both were evaluated on."""

    name: str
    paired: Paired | None
    """None if they were evaluated on different images."""
    n: int
    significant: bool
    """Whether p < 0.05 after Bonferroni correction for the number of comparisons."""


class Comparison(NamedTuple):
    """Several runs compared."""

    entries: list[RunEntry]
    pairs: list[RunPair]
    differences: dict[str, list[str]]
    """Each setting that differs between runs, with its value in each."""


def compare_runs(paths: Sequence[Path], page: Path) -> Comparison:
    """Compare runs with the first one, and write the page."""
    if len(paths) < 2:
        raise RunError("a comparison needs at least two runs.", got=f"{len(paths)}.", hint="vitrail compare RUN RUN.")
    missing = [path for path in paths if not path.is_dir()]
    if missing:
        raise RunError(f"there is no run at {missing[0]}.", hint="the --run directory of vitrail train.")
    runs = [read_run(path) for path in paths]
    _check_classes(paths, runs)
    names = _short_names(paths)
    entries = [_entry(name, path, run) for name, path, run in zip(names, paths, runs, strict=True)]
    pairs = [_pair(name, runs[0], run, len(paths) - 1) for name, run in zip(names[1:], runs[1:], strict=True)]
    result = Comparison(entries, pairs, _differences(runs))
    recalls = [[each[3] for each in run["summary"]["classes"]] for run in runs]
    labels = [each[0] for each in runs[0]["summary"]["classes"]]
    text = render_template(
        "vitrail.report",
        "comparison.html",
        result=result,
        multi_label=runs[0]["summary"]["map"] is not None,
        charts=training_charts([(name, run["metrics"]) for name, run in zip(names, runs, strict=True)]),
        classes=list(zip(labels, *recalls, strict=True)),
        script=files("vitrail.report").joinpath("run.js").read_text(encoding="utf-8"),
        percent=percent,
        percent_range=percent_range,
    )
    write_text(text, page, RunError)
    return result


def _check_classes(paths: Sequence[Path], runs: Sequence[dict[str, Any]]) -> None:
    first, *others = ([each[0] for each in run["summary"]["classes"]] for run in runs)
    for path, classes in zip(paths[1:], others, strict=True):
        if classes != first:
            unshared = sorted(set(first) ^ set(classes)) or ["another order"]
            raise RunError(
                f"{paths[0]} and {path} have different classes.",
                got=f"only one of them knows {', '.join(map(repr, unshared[:MAX_NAMED]))}"
                + (f" and {len(unshared) - MAX_NAMED} more." if len(unshared) > MAX_NAMED else "."),
                hint="runs on the same data.",
            )


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest relative paths that distinguish the runs."""
    resolved = [path.resolve() for path in paths]
    parent = Path(os.path.commonpath(resolved)) if len(set(resolved)) > 1 else resolved[0].parent
    return [str(path.relative_to(parent)) if path != parent else path.name for path in resolved]


def _entry(name: str, path: Path, run: dict[str, Any]) -> RunEntry:
    summary, multi_label = run["summary"], run["summary"]["map"] is not None
    low, high = summary["map_interval" if multi_label else "interval"]
    return RunEntry(
        name,
        path,
        run["facts"]["model"],
        run["result"]["recipe"],
        summary["map" if multi_label else "top1"],
        (low, high),
        summary["n"],
        run["split"],
        summary["ece"],
        run["result"]["seconds"],
        run["facts"]["params"],
    )


def _pair(name: str, first: dict[str, Any], second: dict[str, Any], num_pairs: int) -> RunPair:
    before, after = ([row for row in run["rows"] if row.split == run["split"]] for run in (first, second))
    # Images in memory are named by number, so they are known to be the same only if all of them are.
    origins = {run["config"]["request"].get("data", "") for run in (first, second)}
    unnamed = len(origins) > 1 and any(origin.startswith(f"{IN_MEMORY} ") for origin in origins)
    paired = None if unnamed else compare_rows(before, after)
    if paired is None:
        return RunPair(name, None, 0, significant=False)
    return RunPair(name, paired, paired.n, significant=paired.p_value * num_pairs < 0.05)


def _differences(runs: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    configs = [flatten(run["config"]) for run in runs]
    keys = [key for key in dict.fromkeys(key for config in configs for key in config) if key not in LEFT_OUT]
    texts = {key: ["" if config.get(key) is None else str(config[key]) for config in configs] for key in keys}
    texts = {key.removeprefix("request.").removeprefix("settings."): values for key, values in texts.items()}
    return {key: values for key, values in texts.items() if len(set(values)) > 1}
