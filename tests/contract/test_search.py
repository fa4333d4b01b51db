"""`vitrail search`: from every modality to every other, as a table, JSON or page; one message for wrong input."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contract.aligned_tables import make_rows, words_of, write_aligned, write_rows
from tests.contract.clip_folders import write_zip
from tests.forge import Forge, command
from vitrail.errors import VitrailError
from vitrail.run.aligned_model import load_aligned
from vitrail.verbs.search import search


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Path:
    """A run, and what it was trained on."""
    folder = tmp_path_factory.mktemp("search")
    table, log = write_aligned(folder), folder / "log"
    assert forge.run(command, words_of(table, folder / "run"), log=log) == 0, log.read_text()
    (folder / "words.txt").write_text("a low tone\n\n  a high tone \na low tone\n")
    write_zip(folder / "images.zip", folder / "images")
    return folder


WAYS: dict[str, tuple[str, str, dict[str, Any], str, str, int]] = {
    "words to images": ("a low tone", "images", {}, "text", "image", 20),
    "words to sounds": ("a low tone", "sounds", {}, "text", "sound", 20),
    "words to a zip": ("a low tone", "images.zip", {}, "text", "image", 20),
    "words to a pattern": ("a low tone", "images/1*.png", {}, "text", "image", 11),
    "image to sounds": ("images/3.png", "sounds", {}, "image", "sound", 20),
    "image to images": ("images/3.png", "images", {}, "image", "image", 20),
    "sound to images": ("sounds/3.wav", "images", {}, "sound", "image", 20),
    "sound to words": ("sounds/3.wav", "words.txt", {}, "sound", "text", 2),
    "image to a table": ("images/3.png", "data.csv", {}, "image", "sound", 20),
    "image to words of a table": ("images/3.png", "data.csv", {"modality": "text"}, "image", "text", 4),
    "words to sounds of a table": ("low", "data.csv", {"modality": "sound"}, "text", "sound", 20),
}


@pytest.mark.parametrize("name", WAYS)
def test_every_direction(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query, data, options, one, other, num = WAYS[name]
    monkeypatch.chdir(home)
    result = search("run", query, data, top=3, **options)
    assert (result.query_modality, result.modality, result.num_searched) == (one, other, num)
    assert len(result.found) == min(3, num)
    assert all(first.similarity >= second.similarity for first, second in pairwise(result.found))
    assert result.skipped == ()
    suffix = {"image": ".png", "sound": ".wav", "text": "tone"}[other]
    assert all(suffix in each.name for each in result.found), "named by its own file, or by its text"
    assert search("run", query, data, top=1000, **options).found[:3] == result.found


def test_similarity_is_the_cosine_of_embeddings(home: Path) -> None:
    opened = load_aligned(home / "run")
    own = opened.embed("text", [opened.read("text", "low", "low")])["coarse"]
    content = (home / "images/0.png").read_bytes()
    other = opened.embed("image", [opened.read("image", content, "0")])["coarse"]
    assert torch.linalg.vector_norm(own) == pytest.approx(1, abs=1e-5)
    (found,) = search(home / "run", "low", home / "images/0.png").found
    assert found.similarity == pytest.approx(float(own @ other.T), abs=1e-5)


def test_what_cannot_be_read_is_listed(home: Path) -> None:
    rows = make_rows(home, 6)
    rows[1]["sound"], rows[2]["image"], rows[3]["sound"] = "", "gone.png", "empty.wav"
    (home / "empty.wav").write_bytes(b"")
    table = write_rows(home / "gaps.csv", rows)
    sounds = search(home / "run", "low", table, modality="sound")
    assert sounds.num_searched == 4, "a missing image does not matter"
    assert sounds.skipped == (
        "images/1.png: has no sound. an empty cell.",
        f"{home / 'empty.wav'}: is empty. 0 bytes.",
    )
    assert search(home / "run", "low", table, modality="image").skipped == (
        "gone.png: does not exist. No such file or directory.",
    )


def test_the_command(home: Path, forge: Forge) -> None:
    page, log = home / "page.html", home / "search.log"
    words = ["search", str(home / "run"), str(home / "images/3.png"), str(home / "sounds"), "--top", "2"]
    assert forge.run(command, [*words, "--out", str(page)], log=log) == 0
    assert "similarity" in log.read_text().splitlines()[0]
    assert str(page) in log.read_text()
    html = page.read_text()
    assert html.count("data:image/jpeg") == 3, "the query and what was found"
    assert "Sounds nearest to this image" in html
    assert forge.run(command, [*words, "--json", "--quiet"], log=home / "search.json") == 0
    document = json.loads((home / "search.json").read_text())
    assert document.keys() == {"query", "from", "to", "found", "searched", "skipped"}
    assert [list(each) for each in document["found"]] == [["name", "similarity"]] * 2


def test_a_page_of_words_is_escaped(home: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("<script>alert(1)</script>\nlow\n")
    search(home / "run", "<b>low</b>", home / "images", out=tmp_path / "a.html")
    search(home / "run", home / "images/0.png", tmp_path / "words.txt", out=tmp_path / "b.html")
    for name in ("a.html", "b.html"):
        html = (tmp_path / name).read_text()
        assert "<script>" not in html
        assert "<b>low" not in html


BAD: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "no such file": ("gone.png", "images", {}, "gone.png does not exist"),
    "no words": (" ", "images", {}, "no text to compare with"),
    "no such data": ("low", "nowhere", {}, "no image could be read"),
    "no images there": ("low", "run", {"modality": "sound"}, "there are no sounds in run"),
    "a modality it has not": ("low", "images", {"modality": "video"}, "does not know videos"),
    "a query it has not": ("clip.mp4", "images", {}, "does not know videos"),
    "words only": ("low", "words.txt", {"modality": "image"}, "has nothing to search"),
    "no page": ("low", "images", {"out": "page.txt"}, "must be an HTML file"),
    "no folder": ("low", "images", {"out": "nowhere/page.html"}, "cannot be written"),
    "no run": ("low", "images", {"run": "images"}, "images is not a run"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query, data, options, message = BAD[name]
    monkeypatch.chdir(home)
    Path("clip.mp4").write_bytes(b"x")
    with pytest.raises(VitrailError, match=message):
        search(**{"run": "run", "query": query, "data": data, **options})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "RUN", "gone.wav", "DATA"], "gone.wav does not exist"),
        (["predict", "RUN", "DATA"], "no --labels"),
        (["predict", "RUN", "DATA", "--labels", "low,low"], "two different words or more"),
        (["export", "RUN"], "is a run on several modalities"),
        (["explain", "RUN", "DATA"], "is a run on several modalities"),
        (["convert", "RUN", "--to", "timm", "--out", "x"], "other projects have no such model"),
        (["evaluate", "RUN", "DATA"], "has no images in class folders"),
        (["generate", "RUN", "low"], "is a run of another kind"),
        (["train", "TABLE", "--recipe", "align", "--model", "vatt_x"], "there is no model vatt_x"),
    ],
)
def test_commands_fail_with_one_message(
    words: list[str], message: str, home: Path, forge: Forge, tmp_path: Path
) -> None:
    places = {"RUN": home / "run", "DATA": home / "images", "TABLE": home / "data.csv"}
    code = forge.run(command, [str(places.get(word, word)) for word in words], log=tmp_path / "log")
    text = (tmp_path / "log").read_text()
    assert code == 2, text
    assert message in text
    assert "Traceback" not in text
