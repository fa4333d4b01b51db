"""Runs side by side: one offline page with their scores, curves, settings, and whether one is really better."""

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
from vitrail.pages import fill_template
from vitrail.report.run import curves, run_facts
from vitrail.run.directory import flat
from vitrail.run.predictions import compare_rows

LEFT_OUT = (
    "asked.data_fingerprint",
    "command",
    "chosen.fit.told",
    "chosen.fit.images_per_second",
)  # what differs without a meaning
SHOWN = 5  # classes that are named
IN_MEMORY = "X"  # how scikit-learn, and so VitClassifier, calls pictures that are no files


class Entry(NamedTuple):
    """One run."""

    name: str
    run: Path
    model: str
    recipe: str
    score: float
    """Accuracy, or mean average precision of several labels a picture."""
    interval: Interval
    n: int
    split: str
    ece: float
    seconds: float
    params: int


class Pair(NamedTuple):
    """A run against the first one, on the pictures that both were judged on."""

    name: str
    paired: Paired | None
    """None where they were judged on different pictures."""
    n: int
    real: bool
    """Whether the difference is more than luck would give, with so many comparisons, in 19 cases of 20."""


class Comparison(NamedTuple):
    """Runs side by side."""

    entries: list[Entry]
    pairs: list[Pair]
    differences: dict[str, list[str]]
    """Each setting that is not the same in all runs, with its value in each."""


def compare_runs(paths: Sequence[Path], page: Path) -> Comparison:
    """Compare runs with the first one, and write the page."""
    if len(paths) < 2:
        raise RunError("a comparison needs two runs at least.", got=f"{len(paths)}.", hint="vitrail compare RUN RUN.")
    gone = [path for path in paths if not path.is_dir()]
    if gone:
        raise RunError(f"there is no run at {gone[0]}.", got="a path that leads nowhere.", hint="the --run of train.")
    facts = [run_facts(path) for path in paths]
    _check_classes(paths, facts)
    names = _names(paths)
    entries = [_entry(name, path, each) for name, path, each in zip(names, paths, facts, strict=True)]
    pairs = [_pair(name, facts[0], each, len(paths) - 1) for name, each in zip(names[1:], facts[1:], strict=True)]
    result = Comparison(entries, pairs, _differences(facts))
    recalls = [[each[3] for each in told["account"]["classes"]] for told in facts]
    text = fill_template(
        "vitrail.report",
        "comparison.html",
        result=result,
        multi_label=facts[0]["account"]["map"] is not None,
        charts=curves([(name, each["metrics"]) for name, each in zip(names, facts, strict=True)]),
        classes=[
            (label, *values)
            for label, *values in zip((c[0] for c in facts[0]["account"]["classes"]), *recalls, strict=True)
        ],
        script=files("vitrail.report").joinpath("run.js").read_text(encoding="utf-8"),
    )
    write_text(text, page, RunError)
    return result


def _check_classes(paths: Sequence[Path], facts: Sequence[dict[str, Any]]) -> None:
    first, *others = ([each[0] for each in told["account"]["classes"]] for told in facts)
    for path, classes in zip(paths[1:], others, strict=True):
        if classes != first:
            strange = sorted(set(first) ^ set(classes)) or ["another order"]
            raise RunError(
                f"{paths[0]} and {path} tell different classes apart.",
                got=f"only one of them knows {', '.join(map(repr, strange[:SHOWN]))}"
                + (f" and {len(strange) - SHOWN} more." if len(strange) > SHOWN else "."),
                hint="runs of the same data.",
            )


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names that tell the runs apart."""
    whole = [path.resolve() for path in paths]
    shared = Path(os.path.commonpath(whole)) if len(set(whole)) > 1 else whole[0].parent
    return [str(path.relative_to(shared)) if path != shared else path.name for path in whole]


def _entry(name: str, path: Path, told: dict[str, Any]) -> Entry:
    account, multi_label = told["account"], told["account"]["map"] is not None
    low, high = account["map_interval" if multi_label else "interval"]
    return Entry(
        name,
        path,
        told["facts"]["model"],
        told["result"]["recipe"],
        account["map" if multi_label else "top1"],
        (low, high),
        account["n"],
        told["split"],
        account["ece"],
        told["result"]["seconds"],
        told["facts"]["params"],
    )


def _pair(name: str, first: dict[str, Any], second: dict[str, Any], num: int) -> Pair:
    before, after = ([row for row in told["rows"] if row.split == told["split"]] for told in (first, second))
    # Pictures that are no files are called by number: they are the same only if all of them are.
    origins = {told["config"]["request"].get("data", "") for told in (first, second)}
    unnamed = len(origins) > 1 and any(origin.startswith(f"{IN_MEMORY} ") for origin in origins)
    paired = None if unnamed else compare_rows(before, after)
    return Pair(name, paired, 0 if paired is None else paired.n, paired is not None and paired.p_value * num < 0.05)


def _differences(facts: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    configs = [flat(told["config"]) for told in facts]
    keys = [key for key in dict.fromkeys(key for config in configs for key in config) if key not in LEFT_OUT]
    told = {key: ["" if config.get(key) is None else str(config[key]) for config in configs] for key in keys}
    told = {key.removeprefix("asked.").removeprefix("settings."): values for key, values in told.items()}
    return {key: values for key, values in told.items() if len(set(values)) > 1}
