"""Real Chromium, if there is one, and a service to open in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """A browser; where there is none, the tests that need it are skipped.

    It ends with these tests: while it is there, its event loop counts as running, and no other could start.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def served(deit_tiny: Path) -> Iterator[str]:
    """The address of a service with the real DeiT-Ti."""
    expect.set_options(timeout=30_000)  # milliseconds: of two cores, others use one
    words = ["serve", "deit_tiny_patch16_224", "--weights", str(deit_tiny), "--port", "0", "--json", "--quiet"]
    with subprocess.Popen([sys.executable, "-m", "vitrail", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["address"]
        process.terminate()
        assert process.wait() == 0


@pytest.fixture
def dog(data_dir: Path) -> Path:
    """The photo of a corgi."""
    return data_dir / "photos" / "dog1.jpg"
