"""Claims: every entry of the registry decides by its rows, results are resumable, and the page shows what is stored."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import ROOT
from vitrail import plug, train
from vitrail.benchmark import claims_page, results, verdict
from vitrail.benchmark.experiment import Laboratory, additive_r2, patch_order, shuffle_patches
from vitrail.benchmark.networks import vit
from vitrail.errors import DataError, UnknownNameError
from vitrail.verbs import claims as verb

NAMES = plug.entries(results.CLAIMS)
SPARE = {  # what experiments measure besides accuracy
    "mflops": 1.0,
    "position_r2": 0.4,
    "position_r2_unshuffled": 0.5,
    "permuted_accuracy": 0.3,
    "unchanged": 1.0,
    "processor_seconds": 60.0,
    **{name: [0.6, 0.7] for name in ("matched", "control", "random_matched", "eye_ear_matched")},
    **{name: [0.6] * 13 for name in ("by_block", "random_by_block")},
}


def made_up(name: str, seeds: int = 3) -> dict[str, dict]:
    """Rows for all experiments of a claim; accuracies differ by experiment and a little by seed."""
    module, rows = plug.load(results.CLAIMS, name), {}
    for seed in range(seeds):
        for number, experiment in enumerate(module.experiments(seed).values()):
            distances = [[0.1 * block + 0.01 * head * seed for head in range(3)] for block in range(1, 13)]
            accuracy = 0.4 + 0.01 * number + 0.001 * seed
            rows[experiment.key] = {**SPARE, "accuracy": accuracy, "distance": distances}
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_decides_by_its_rows(name: str) -> None:
    module = plug.load(results.CLAIMS, name)
    for text in ("DECK", "CLAIM", "PAPER", "EXPERIMENT"):
        assert getattr(module, text)
    rows = made_up(name)
    found = results.summarise(results.Stored(name, rows, {}))
    assert found.seeds == 3
    assert found.verdict == verdict.conclude(found.parts) != "not run yet"
    assert found.statistic == verdict.deciding(found.parts).mean
    chart = module.chart(results.complete_seeds(name, rows))
    assert claims_page.draw_chart(chart).axes
    last = list(rows)[:-1]
    assert results.summarise(results.Stored(name, {key: rows[key] for key in last}, {})).seeds == 2
    assert (
        len({each.key for each in module.experiments(0).values()} & {e.key for e in module.experiments(1).values()})
        == 0
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.02, 0.021, 0.019), "holds"),
        ((-0.02, -0.021, -0.019), "does not hold"),
        ((0.02, -0.021, 0.019), "cannot tell at this scale"),
        ((0.5,), "cannot tell at this scale"),
    ],
)
def test_an_interval_decides(values: tuple[float, ...], expected: str) -> None:
    part = verdict.Contrast("it is so", values)
    assert part.verdict == expected
    assert verdict.conclude([verdict.Contrast("surely", (1.0, 1.0)), part]) == expected


def test_the_interval_is_students() -> None:
    low, high = verdict.Contrast("", (1.0, 2.0, 3.0)).interval
    assert (low, high) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))


def test_a_changed_result_changes_the_verdict(tmp_path: Path) -> None:
    rows = made_up("sam")
    file = tmp_path / "sam.json"
    for plain, expected in ((0.1, "holds"), (0.9, "does not hold")):
        changed = {
            key: {**row, "accuracy": plain if "sam=" not in key else row["accuracy"]} for key, row in rows.items()
        }
        file.write_text(json.dumps({"name": "sam", "rows": changed, "hardware": {}}))
        found = {claim.name: claim.verdict for claim in verb.claims(tmp_path)}
        assert found["sam"] == expected
        page = verb.write_claims_page(tmp_path / "page.md", tmp_path).read_text()
        assert f"**{expected.capitalize()}.** 9 experiments, 3 seeds" in page
    light, dark = ((tmp_path / "figures" / "claims" / f"sam{suffix}").read_bytes() for suffix in (".png", "-dark.png"))
    assert light != dark


def test_the_page_shows_the_stored_results() -> None:
    page = (ROOT / "docs" / "claims.md").read_text()
    assert page == claims_page.page_text(verb.claims(), results.RESULTS), "vitrail claims --page docs/claims.md"
    for claim in verb.claims():
        for suffix in claims_page.SUFFIXES:
            figure = ROOT / "docs" / "figures" / "claims" / f"{claim.name}{suffix}"
            assert figure.is_file() == bool(claim.seeds), figure.name


@dataclass(frozen=True)
class Noted:
    """An experiment that leaves a note each time it runs."""

    number: int
    seed: int
    cost: float = 0.0

    @property
    def key(self) -> str:
        return f"noted {self.number} seed={self.seed}"

    def run(self, lab: Laboratory) -> dict:
        with (lab.work / "notes").open("a") as notes:
            notes.write(f"{self.key}\n")
        return {"accuracy": 0.1 * self.number, "processor_seconds": 1.0}


def test_finished_experiments_do_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(
        DECK="003",
        CLAIM="Later is better.",
        experiments=lambda seed: {str(number): Noted(number, seed) for number in range(2)},
        contrasts=lambda measured: [verdict.contrast("later is better", measured, "1", "0")],
    )
    registry = SimpleNamespace(load=lambda *_: entry, entries=lambda _: ("later",), import_from=plug.import_from)
    monkeypatch.setattr(verb, "plug", registry)
    monkeypatch.setattr(results, "plug", registry)
    monkeypatch.setattr(verb, "ProcessPoolExecutor", lambda num, **_: ThreadPoolExecutor(num))
    options = {"data": tmp_path, "work": tmp_path / "work"}
    assert verb.run_claims("later", seeds=1, minutes=0.01, **options)[0].verdict == "not run yet"
    assert verb.run_claims("later", seeds=1, **options)[0].seeds == 1
    assert verb.run_claims("later", seeds=2, **options)[0].verdict == "holds"
    notes = (tmp_path / "work" / "notes").read_text().splitlines()
    assert sorted(notes) == sorted(f"noted {number} seed={seed}" for number in range(2) for seed in range(2))


def test_a_training_run_is_measured(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "cifar10").mkdir()
    images = {
        name: rng.integers(0, 256, (num, 32, 32, 3), dtype=np.uint8) for name, num in (("train", 60), ("test", 20))
    }
    np.savez(
        tmp_path / "cifar10" / "small.npz",
        **{f"x_{name}": each for name, each in images.items()},
        **{f"y_{name}": np.arange(len(each)) % 10 for name, each in images.items()},
    )
    lab = Laboratory(tmp_path, tmp_path / "work", train)
    lab.work.mkdir()
    run = vit("mini", "position=none", num_images=60, num_seen=128, inspect=("permuted", "distance"))
    row = run.run(lab)
    assert row["steps"] == 2
    assert row["unchanged"] == 1.0, "without positions, attention is an operation on sets"
    assert row["accuracy"] == row["permuted_accuracy"]
    assert np.shape(row["distance"]) == (2, 2)
    assert not list((lab.work / "runs").iterdir()), "a finished run leaves nothing"
    assert run.cost == pytest.approx(3 * run.network().flops() * 128 / 1e12)
    with pytest.raises(DataError, match="needs 61 training images"):
        vit("mini", num_images=61).run(lab)


def test_a_table_of_rows_plus_columns_is_recognised() -> None:
    rng = np.random.default_rng(0)
    additive = rng.normal(size=(8, 1, 16)) + rng.normal(size=(1, 8, 16))
    assert additive_r2(additive) == pytest.approx(1.0)
    noise = [additive_r2(rng.normal(size=(8, 8, 16))) for _ in range(20)]
    assert abs(np.mean(noise)) < 0.02, "adjusted: a random table has none"


def test_shuffled_patches_are_the_same_patches() -> None:
    image = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(1, 16, 16, 3)
    shuffled = shuffle_patches(image)
    order = patch_order(8)
    row, column = divmod(int(order[5]), 8)
    assert (shuffled[0, 0:2, 10:12] == image[0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]).all()
    assert not (shuffled == image).all()


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no claim has this name"):
        verb.run_claims("everything", data=tmp_path)
    with pytest.raises(DataError, match="the experiments need their data"):
        verb.run_claims("sam", data=tmp_path / "nowhere")
    with pytest.raises(DataError, match="there are no stored results"):
        verb.claims(tmp_path / "nowhere")
    (tmp_path / "sam.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="is no result of a claim"):
        verb.claims(tmp_path)
