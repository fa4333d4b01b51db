"""`vitrail explain` with a run on text: files, JSON, and one message for wrong input."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.contract.text_runs import KINDS, TEXTS, make_run
from vitrail.errors import DataError, InspectionError, RunError
from vitrail.verbs.explain import explain


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {kind: make_run(kind, folder) for kind in KINDS}


def test_a_page_and_a_figure_for_each_text(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a note.txt").write_text("the goat\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the goat\n")))
    words = ["the goat", "the, goat!", str(tmp_path / "a note.txt"), "-"]
    found = explain(runs["language"], words, out=tmp_path / "out")
    assert [each.page.name for each in found] == [
        "the-goat.explained.html",
        "the-goat-2.explained.html",
        "a note.explained.html",
        "the-goat-3.explained.html",
    ]
    assert [each.text for each in found] == ["the goat", "the, goat!", "the goat", "the goat"]
    for each in found:
        assert each.still.read_bytes().startswith(b"\x89PNG")
        assert each.page.read_text().endswith("</html>\n") or "</html>" in each.page.read_text()
        assert len(each.predictions) == 1
        assert each.summary.startswith("the next token is “")


@pytest.mark.parametrize("kind", KINDS)
def test_json(
    kind: str, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    code = call(monkeypatch, "explain", str(runs[kind]), TEXTS[kind], "--out", str(tmp_path), "--json", "--quiet")
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    document = json.loads(output.out)
    assert set(document) == {"files", "texts"}
    (text,) = document["texts"]
    assert document["files"] == [text["page"], text["still"]]
    assert text["text"] == TEXTS[kind]
    assert (text["translation"] is None) == (kind != "translation")
    assert [each["place"] for each in text["predictions"]] == {"language": [17], "masked_language": [1, 5]}.get(
        kind, []
    )
    for each in text["predictions"]:
        assert len(each["tokens"]) == 5
        assert each["tokens"][0].keys() == {"id", "text", "probability"}


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    from vitrail import __main__ as entry

    monkeypatch.setattr(sys, "argv", ["vitrail", *words])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    return stopped.value.code


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("language", [""], "DataError: there is no text to explain.\n  Got an empty text."),
        ("language", [" \n"], "DataError: there is no text to explain."),
        ("translation", [""], "DataError: there is no text to explain."),
        (
            "language",
            ["goat" * 13],
            "DataError: the text is longer than the model's context.\n  Got 52 tokens, 48 fit.",
        ),
        ("masked_language", ["a goat " * 25], "DataError: the text is longer than the model's context."),
        ("translation", ["🐐" * 13], "DataError: the text is longer than the model's context."),
        ("masked_language", ["a [FOO] ."], "DataError: there is no special token [FOO]."),
        ("translation", ["goat", "--to", "es"], "DataError: this run does not translate to es."),
        ("language", ["goat", "--to", "de"], "DataError: only translators take --to."),
        (
            "language",
            ["goat", "--class", "goat"],
            "InspectionError: --class is for images and clips.\n  Got a run on text",
        ),
        ("language", ["goat", "--method", "rollout"], "InspectionError: --method is for images and clips."),
        (
            "language",
            ["goat", "--class", "a", "--method", "b"],
            "InspectionError: --class and --method are for images and clips.",
        ),
        ("language", ["goat.jpg"], "DataError: this run explains text, not images.\n  Got goat.jpg."),
        ("language", ["nowhere.txt"], "DataError: nowhere.txt cannot be read.\n  Got No such file or directory."),
        ("language", ["goat", "--out", "{file}"], "InspectionError: {file} is not a folder."),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_two(
    kind: str,
    words: list[str],
    message: str,
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    words = [word.format(file="file") for word in words]
    assert call(monkeypatch, "explain", str(runs[kind]), *words) == 2
    output = capsys.readouterr()
    assert message.format(file="file") in output.err
    assert output.err.count("Error: ") == 1
    assert output.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("text", ["The sheep and goat are grazing.", "A [MASK] is here.", "what? " * 100])
def test_a_model_of_images_refuses_a_text(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"this model explains images, not text"):
        explain("vit_mu_patch16_224", [text], out=tmp_path / "out")
    with pytest.raises(InspectionError, match="--to is for runs that translate"):
        explain("vit_mu_patch16_224", ["dog.jpg"], to="de")


def test_a_text_that_is_not_utf8_is_refused(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"the text is not UTF-8\."):
        explain(runs["language"], ["a\udcffb"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xffc")))
    with pytest.raises(DataError, match=r"standard input is not text in UTF-8\.\n  Got the byte 0xff at place 2\."):
        explain(runs["language"], ["-"])


def test_a_damaged_run_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((runs["language"] / "config.yaml").read_text())
    with pytest.raises(RunError, match="has not finished"):
        explain(tmp_path, ["goat"])
