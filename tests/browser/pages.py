"""A page as a reader opens it, and all that it should not do."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, Page


def opened(chromium: Browser, path: Path, width: int, scheme: str) -> tuple[Page, list[str]]:
    """The page, and a list that fills with what the console says, errors, and addresses that are asked for."""
    page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if request.url[:4] == "http" else None)
    page.goto(path.as_uri())
    return page, said
