"""The report explains what readers stumble over, each thing where they meet it."""

from __future__ import annotations

import re

import pytest

from tests.contract.colours import learn, write_colours


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run with errors, curves, calibration, a data check and a limit for unknown images."""
    folder = tmp_path_factory.mktemp("words")
    write_colours(folder / "data", {"train": 20, "val": 40}, swapped=10)
    learn(folder / "data", folder / "run", "steps=20")
    return (folder / "run" / "report.html").read_text(encoding="utf-8")


def section(page: str, name: str) -> str:
    """The words of a section, without its markup."""
    found = re.search(rf'<section id="{name}">(.*?)</section>', page, flags=re.DOTALL)
    assert found, name
    return " ".join(re.sub(r"<svg.*?</svg>|<[^>]*>", " ", found[1], flags=re.DOTALL).replace("&nbsp;", " ").split())


def test_a_calibrated_confidence_is_a_target(page: str) -> None:
    words = section(page, "calibration")
    assert "The target: of the predictions with 80 % confidence, 80 % are correct." in words
    assert "so that predictions with 80 %" not in words
    assert "the stronger the colour of a bar, the more images it stands for" in words


def test_a_confident_prediction_may_be_unknown(page: str) -> None:
    assert "A confident prediction can be flagged as unknown too" in section(page, "errors")


def test_losses_are_explained_below_their_chart(page: str) -> None:
    words = section(page, "curves")
    assert words.index("training loss") < words.index("The training loss may lie above the validation loss")


def test_how_it_was_trained_does_not_stand_below_the_data_check(page: str) -> None:
    assert "The data has its own validation split." in section(page, "curves")
    assert "The data has its own validation split." not in section(page, "data")
    assert "The data check found" not in page


def test_labels_are_only_probably_wrong(page: str) -> None:
    assert '<a href="#labels">Probably wrong labels</a>' in page
    assert section(page, "labels").startswith("Labels that are probably wrong")
