"""How the page of `vitrail serve` handles responses: errors, delays, and models of every kind."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.service_page import UNKNOWN, Visit, broken, card, change_model, change_predictions

pytestmark = pytest.mark.data
CORGI = "Pembroke Welsh Corgi"


def test_the_page_asks_for_a_token(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.page

    def guard(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer open sesame":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"code": "unauthorized", "message": "no.", "hint": None}})

    page.route("**/v1/**", guard)
    page.goto(f"{served}/")
    expect(page.get_by_role("textbox", name="Token")).to_be_focused()
    expect(page.locator("#workspace")).to_be_hidden()
    page.keyboard.type("\u00f6ffne dich \u2013")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(["The server rejected this token"])
    page.get_by_role("textbox", name="Token").fill("open barley")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(["The server rejected this token"])
    page.get_by_role("textbox", name="Token").fill("open sesame")
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector("html[data-ready=yes]")
    page.set_input_files("#file-input", dog)
    expect(page.get_by_role("heading", name=CORGI)).to_be_visible()
    expect(page.locator("#token-panel")).to_be_hidden()
    page.reload()
    page.wait_for_selector("html[data-ready=yes]")
    assert page.evaluate("localStorage.getItem('vitrail.token')") is None, "it is stored for this tab only"
    visit.close(num_errors=2)


def test_requests_to_a_busy_server_are_retried(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.page
    times: list[float] = []

    def answer(route: Route) -> None:
        times.append(time.monotonic())
        if len(times) > 2:
            return route.continue_()
        error = {"error": {"code": "too_busy", "message": "too busy.", "hint": None}}
        return route.fulfill(status=(429, 503)[len(times) - 1], headers={"Retry-After": "1"}, json=error)

    page.route("**/v1/predict?*", answer)
    visit.open().set_input_files("#file-input", dog)
    expect(card(page, "dog1.jpg")).to_contain_text(re.compile(r"The server is busy. Retrying in 1\s+s \(2 of 5\)"))
    expect(page.get_by_role("heading", name=CORGI)).to_be_visible()
    assert min(times[1] - times[0], times[2] - times[1]) > 0.9
    visit.close(num_errors=2)


def test_four_images_at_the_same_time(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.page
    pending: list[Route] = []

    def hold(route: Route) -> None:
        pending.append(route)

    page.route("**/v1/predict?*", hold)
    visit.open().set_input_files("#file-input", [broken(f"{number}.jpg", dog.read_bytes()) for number in range(6)])
    expect(page.locator("#progress")).to_contain_text("0 of 6 images done")
    page.wait_for_timeout(300)
    assert len(pending) == 4
    pending[0].continue_()
    expect(page.locator("#progress")).to_contain_text("1 of 6 images done")
    page.wait_for_timeout(100)
    assert len(pending) == 5
    pending[1].abort()
    again = page.get_by_role("button", name="Try again")
    expect(again).to_be_visible()
    expect(page.locator(".failed")).to_contain_text("The server cannot be reached")
    again.click()
    for _ in range(100):
        while len(pending) > 2:
            pending.pop().continue_()
        page.wait_for_timeout(50)
        if page.locator(".bars").count() == 6:
            break
    expect(page.locator(".bars")).to_have_count(6)
    visit.problems = [text for text in visit.problems if "ERR_FAILED" not in text]
    visit.close()


def test_too_large_a_file_never_leaves_the_browser(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.page
    change_model(visit, limits={"bytes": 50_000, "images": 1, "pixels": 1, "side": 1})
    page.route("**/v1/predict?*", lambda route: pytest.fail("it was sent"))
    visit.open().set_input_files("#file-input", dog)
    expect(page.locator(".failed")).to_contain_text(re.compile(r"has 96\s+kB; the server accepts at most 49\s+kB"))
    visit.close()


def test_unknown_images_are_flagged(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.page
    change_predictions(visit, UNKNOWN)
    visit.open().set_input_files("#file-input", dog)
    found = card(page, "dog1.jpg")
    expect(found.get_by_role("heading", name="Unknown")).to_be_visible()
    expect(found).to_contain_text("unlike those the model was trained on, so its label means little")
    expect(found).to_contain_text("Closest label: tench")
    visit.close()


def test_multi_label_predictions(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.page
    change_model(visit, multi_label=True, labels=["a", "b", "c"], num_classes=3)
    top = [{"label": label, "confidence": confidence} for label, confidence in (("a", 0.9), ("b", 0.8), ("c", 0.1))]
    change_predictions(visit, {"label": "a", "labels": ["a", "b"], "confidence": 0.9, "unknown": False, "top": top})
    visit.open().set_input_files("#file-input", dog)
    expect(page.locator(".chip")).to_have_text(["a", "b"])
    page.unroute("**/v1/predict?*")
    change_predictions(visit, {"label": "a", "labels": [], "confidence": 0.2, "unknown": False, "top": top})
    page.set_input_files("#file-input", dog)
    expect(page.get_by_role("heading", name="No label applies")).to_be_visible()
    expect(page.locator("#label-list li")).to_have_text(["a", "b", "c"])
    visit.close()


def test_a_model_without_explanations(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.page
    change_model(visit, explains=[], engine="ONNX Runtime", card=None)
    visit.open().set_input_files("#file-input", dog)
    expect(page.get_by_role("heading", name=CORGI)).to_be_visible()
    expect(page.get_by_role("button", name="Show explanation")).to_have_count(0)
    note = page.locator("#results").get_by_text("Explanations are not available for this model (ONNX Runtime).")
    expect(note).to_be_visible()
    expect(page.locator("#model-card")).to_be_hidden()
    visit.close()


def test_the_model_is_described(chromium: Browser, served: str) -> None:
    visit = Visit(chromium, served)
    change_model(
        visit,
        card="---\na: b\n---\n# Title\n\nSome `code` and <b>letters</b>.\n\n| x | y |\n| --- | --- |\n| 1 | 2 |\n",
    )
    page = visit.open()
    facts = json.loads(urllib.request.urlopen(f"{served}/v1/model").read())
    for fact in (facts["name"], facts["version"], facts["engine"], "224 \u00d7 224 pixels", "1,000"):
        expect(page.locator("#model-facts")).to_contain_text(fact)
    page.get_by_text("1,000 labels").click()
    page.get_by_label("Search labels").fill("corgi")
    expect(page.locator("#label-list li")).to_have_text([CORGI, "Cardigan Welsh Corgi"])
    page.get_by_text("Model card").click()
    expect(page.locator("#model-card-text")).to_contain_text("Some code and <b>letters</b>.")
    expect(page.locator("#model-card-text td")).to_have_text(["1", "2"])
    expect(page.locator("#model-card-text")).not_to_contain_text("a: b")
    visit.close()
