"""The page of the service as a visitor opens it, and the ways in which pictures come to it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, Route

REFUSED = "Failed to load resource: the server responded with a status of"  # what Chromium says of every refusal


class Visit:
    """An open page, and a list that fills with what it should not do: errors, warnings, requests to other places."""

    def __init__(self, chromium: Browser, address: str, *, width: int = 1200, scheme: str = "light") -> None:
        self.page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.address = address
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if not url.startswith((f"{self.address}/", "blob:", "data:image/")):
            self.said.append(url)

    def open(self) -> Page:
        self.page.goto(f"{self.address}/")
        self.page.wait_for_selector("html[data-ready=yes]")
        return self.page

    def close(self, *, refusals: int = 0) -> None:
        """End the visit; as many refusals as were meant may have been told."""
        told = [text for text in self.said if REFUSED in text]
        assert [text for text in self.said if text not in told] == []
        assert len(told) == refusals, told
        self.page.context.close()


def card(page: Page, name: str) -> Locator:
    return page.locator("li.card", has=page.get_by_text(name, exact=True))


def broken(name: str = "broken.jpg", content: bytes = b"this is no picture") -> Any:
    return {"name": name, "mimeType": "image/jpeg", "buffer": content}


BRING = """([way, name, content]) => {
  const bytes = Uint8Array.from(atob(content), (char) => char.charCodeAt(0)), carried = new DataTransfer();
  carried.items.add(new File([bytes], name, { type: name.endsWith("png") ? "image/png" : "image/jpeg" }));
  const chances = { bubbles: true, cancelable: true };
  const event = way === "paste"
    ? new ClipboardEvent("paste", { clipboardData: carried, ...chances })
    : new DragEvent(way, { dataTransfer: carried, ...chances });
  return !(way === "paste" ? document.body : document.getElementById("drop")).dispatchEvent(event);
}"""


def bring(page: Page, way: str, photo: Path, name: str | None = None) -> bool:
    """Drop, drag over or paste a file; whether the page took it over from the browser."""
    return page.evaluate(BRING, [way, name or photo.name, base64.b64encode(photo.read_bytes()).decode()])


def told_of(visit: Visit, **changes: Any) -> None:
    """Let the page hear another account of the model."""

    def answer(route: Route) -> None:
        found = route.fetch()
        route.fulfill(response=found, json=found.json() | changes)

    visit.page.route("**/v1/model", answer)


def predicted(visit: Visit, prediction: dict[str, Any]) -> None:
    """Let the page hear this of every picture."""
    body = {"model": {"name": "m", "version": "1"}, "predictions": [{"name": None} | prediction], "request_id": "1"}
    visit.page.route("**/v1/predict?*", lambda route: route.fulfill(json=body))


UNKNOWN = {
    "label": "tench",
    "labels": ["tench"],
    "confidence": 0.4,
    "unknown": True,
    "top": [{"label": "tench", "confidence": 0.4}],
}
