"""Every folder, file and test that docs/architecture.md names exists."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"[\w-]+(?:/[\w-]+)+(?:\.\w+)?|\b\w+\.py\b", PAGE)))
ROWS = re.findall(r"^\| (`.*`) \| .* \| (.*) \|$", PAGE, flags=re.MULTILINE)
NAME = re.compile(r"`([\w/.]+)`")


def test_the_page_names_something() -> None:
    assert len(PATHS) > 20
    assert len(ROWS) > 10


@pytest.mark.parametrize("path", PATHS)
def test_paths(path: str) -> None:
    found = [folder for folder in (ROOT, ROOT / "vitrail") if (folder / path).exists()]
    assert found or list(ROOT.glob(f"tests/*/{path}")), path


@pytest.mark.parametrize(("folders", "tests"), ROWS)
def test_registries(folders: str, tests: str) -> None:
    """A registry folder and the test that walks it."""
    assert NAME.findall(tests), f"{folders}: no test"
    for name in NAME.findall(tests):
        assert list(ROOT.glob(f"tests/*/{name}")), name
    for folder in NAME.findall(folders):
        assert (ROOT / "vitrail" / folder).is_dir(), folder
