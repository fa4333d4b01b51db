"""Runs of earlier versions load, and resume from their checkpoints.

runs_0_1.zip was written by version 0.1.0 (commit 61dd8da), runs_0_2.zip by the last commit before batches had fields
(80f79f0). Each has `finished`, four steps on the digits, and `interrupted`, the same run killed after its second step.
That resumed runs end with the same bits, on the same machine, is what benchmarks/same_bits.py shows.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import yaml

import vitrail
from vitrail.errors import RunError

SETTINGS = (
    *("steps=4", "eval_every=2", "batch_size=32", "precision=float32", "cache_gb=0.0"),
    *("model.width=16", "model.depth=1", "model.heads=2", "model.hidden=16"),
    *("model.stem.channels=[8, 16]", "model.stem.strides=[1, 2]", "model.stem.units=[0, 1]"),
)


@pytest.fixture(params=["0_1", "0_2"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).with_name(f"runs_{request.param}.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def train(run: Path, *more: str) -> vitrail.verbs.train.Training:
    return vitrail.train("digits", recipe="scratch", model="vit_mu_conv2_8", run=run, settings=(*SETTINGS, *more))


def test_an_interrupted_run_resumes(runs: Path) -> None:
    run = runs / "interrupted"
    first = (run / "metrics.jsonl").read_text()
    old = yaml.safe_load((run / "config.yaml").read_text())
    result = train(run)
    assert result.steps == 4
    metrics = (run / "metrics.jsonl").read_text()
    assert metrics.startswith(first), "from its second step on"
    assert json.loads(metrics.splitlines()[-1])["step"] == 4
    config = yaml.safe_load((run / "config.yaml").read_text())
    decisions = old.get("decisions", old.get("chosen"))
    assert config["request"] == old.get("request", old.get("asked"))
    assert config["decisions"]["plan"] == decisions.get("plan", decisions.get("fit")), "as it was planned then"
    assert config["decisions"]["scanned"] == decisions.get("scanned", decisions.get("looked"))
    assert not config.keys() & {"asked", "chosen"}
    assert (config["kind"], config["objective"]) == ("classification", "classify")


def test_a_finished_run_without_a_summary_is_not_called_unfinished(runs: Path, tmp_path: Path) -> None:
    finished = runs / "finished"
    (finished / "account.json").unlink(missing_ok=True)
    with pytest.raises(RunError, match="earlier version"):
        vitrail.compare([finished, finished], page=tmp_path / "page.html")


def test_an_interrupted_run_ends_near_the_one_that_was_not(runs: Path) -> None:
    """Not bit for bit: it was made on another machine, and Muon computes in batches since 0.2."""
    train(runs / "interrupted")
    ends = [
        json.loads((runs / name / "metrics.jsonl").read_text().splitlines()[-1]) for name in ("interrupted", "finished")
    ]
    assert ends[0]["val_loss"] == pytest.approx(ends[1]["val_loss"], abs=0.02)


def test_a_finished_run_loads_and_returns_its_result(runs: Path) -> None:
    run = runs / "finished"
    model = vitrail.load(run)
    assert model.labels == tuple("0123456789")
    result = train(run)
    assert result.test == json.loads((run / "result.json").read_text())["test"]
    stored = json.loads((run / "result.json").read_text())
    assert result.seconds_by_phase == stored.get("seconds_by_phase")
    assert (run / "report.html").is_file(), "the report is written from the files of the run"
    evaluated = vitrail.evaluate(run, "digits")
    assert evaluated.top1 == result.test["top1"]


def test_other_settings_are_still_refused(runs: Path) -> None:
    with pytest.raises(RunError, match="lr"):
        train(runs / "finished", "lr=0.5")
