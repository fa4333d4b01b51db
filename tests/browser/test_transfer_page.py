"""The page of a transfer in the browser: readable at any width, in light and dark, and accessible."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.browser.pages import opened
from tests.browser.test_report import SERIOUS
from vitrail.benchmark.transfer import (
    Backbone,
    DataResult,
    SeedScore,
    common_reasons,
    make_means,
    make_rows,
    paper_tables,
    pool_seeds,
)
from vitrail.report.transfer import render_transfer

RECIPES = ("probe", "finetune")


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    backbone = Backbone("vit_mu_patch4_16", 20_000, (16, 16))
    seeds = [
        SeedScore(seed, f"pets/probe/seed-{seed}/run", 0.7, 0.7 + seed / 20, 740, {"run": 0.7}, {"run": 9}, 60.0)
        for seed in (0, 1)
    ]
    names = ("pets", "CIFAR-10", "<b>mine</b>" * 4)
    results = [DataResult(name, name, 37, 5000, 1000, 740, dict.fromkeys(RECIPES, pool_seeds(seeds))) for name in names]
    rows = make_rows(results, backbone, RECIPES)
    result = SimpleNamespace(
        **backbone._asdict(),
        model=backbone.name,
        weights="mu.safetensors",
        recipes=RECIPES,
        examples=1000,
        minutes=2.0,
        seeds=2,
        columns=[column.title for column in paper_tables().columns],
        reasons=common_reasons(backbone, RECIPES, 2.0),
        data=results,
        rows=rows,
        means=make_means(results, rows, RECIPES),
        hardware={"cpu": "a processor", "cores": 2, "torch": "2.13"},
    )
    path = tmp_path_factory.mktemp("transfer") / "transfer.html"
    path.write_text(render_transfer(result, paper_tables().groups))
    return path


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1200, "light")])
def test_accessible_at_any_width(chromium: Browser, page_path: Path, width: int, scheme: str) -> None:
    page, said = opened(chromium, page_path, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    faults = [fault for fault in Axe().run(page).response["violations"] if fault["impact"] in SERIOUS]
    assert not faults, [(fault["id"], [node["html"] for node in fault["nodes"]][:3]) for fault in faults]
    assert page.locator("b", has_text="mine").count() == 0  # names are text
    assert page.locator("tr.absent").count() == 23
    assert said == []
    page.close()
