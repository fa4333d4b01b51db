"""`vitrail tokens` shows how texts and images are cut, or says in one message why it cannot."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.contract.small_texts import DECK_IDS, DECK_TEXT
from tests.contract.text_runs import make_run
from vitrail.data.text.tokenizer import SPECIAL
from vitrail.errors import DataError, InspectionError, RunError, SpecError, UnknownNameError
from vitrail.inspection import tokens_page
from vitrail.verbs import tokens as verb
from vitrail.verbs.tokens import TextTokens, has_cl100k, tokens


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {kind: make_run(kind, folder) for kind in ("masked_language", "translation")}


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    from vitrail import __main__ as entry

    monkeypatch.setattr(sys, "argv", ["vitrail", "tokens", *words])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    return stopped.value.code


def cut(text: str, **options: object) -> TextTokens:
    found = tokens(text, **options)
    assert isinstance(found, TextTokens)
    return found


@pytest.mark.data
def test_the_lectures_tokens(data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ranks = (data_dir / "text/bpe/cl100k_base.tiktoken").read_bytes()
    (tmp_path / verb.CL100K_CACHE).write_bytes(ranks)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    found = cut(DECK_TEXT)
    assert [token.id for token in found.tokens] == DECK_IDS
    assert (len(found.tokens), found.num_utf16_units, found.num_characters) == (57, 252, 250)
    assert found.by_default
    assert [token.text for token in found.tokens[30:36]] == [" <F0><9F>", "<A4>", "<9A>", "<F0><9F>", "<8F>", "<BE>"]
    shared = DECK_TEXT.index("\n\nSequences") - 1
    assert {(token.start, token.stop) for token in found.tokens[33:36]} == {(shared, shared + 1)}


def test_characters_are_the_default_without_cl100k(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert not has_cl100k()
    found = cut("a goat 🐐")
    assert found.tokenizer.startswith("characters")
    assert [token.text for token in found.tokens] == list("a goat 🐐")
    assert [(token.start, token.stop) for token in found.tokens] == [(place, place + 1) for place in range(8)]
    assert (found.num_characters, found.num_utf16_units) == (8, 9)
    (tmp_path / verb.CL100K_CACHE).write_text("")
    assert has_cl100k()
    monkeypatch.setattr(verb, "find_spec", lambda name: None)
    assert not has_cl100k(), "tiktoken is not installed"


def test_the_tokenizer_of_a_run(runs: dict[str, Path]) -> None:
    found = cut("The GOAT ; grazing", run=runs["masked_language"])
    assert [token.text for token in found.tokens] == ["The", "GOAT", ";", "grazing"]
    assert [token.unknown for token in found.tokens] == [False, False, True, False]
    assert not found.by_default
    parts = cut("🐐 goat", run=runs["translation"]).tokens
    assert [token.text for token in parts[:4]] == ["<F0>", "<9F>", "<90>", "<90>"]
    assert [(token.start, token.stop) for token in parts[:4]] == [(0, 1)] * 4
    assert "".join(token.text for token in parts[4:]) == " goat"


@pytest.mark.parametrize("kind", ["subwords", "words"])
def test_a_tokenizer_is_learned_from_a_file(kind: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the goat and the goat and the goat")
    found = cut(str(tmp_path / "text.txt"), tokenizer=kind)
    assert found.tokenizer == f"{kind}, learned from this text"
    spaced = kind == "subwords"
    assert [token.text for token in found.tokens[:3]] == (
        ["the", " goat", " and"] if spaced else ["the", "goat", "and"]
    )


def test_output_elsewhere_than_on_a_terminal(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert call(monkeypatch, "the goat ;\x1b", "--run", str(runs["masked_language"])) == 0
    output = capsys.readouterr()
    tokens_line, ids, counts = output.out.splitlines()
    assert tokens_line == "the|goat|;␛"
    assert len(ids.split()) == 3
    assert counts == "3 tokens, 11 characters, 1 unknown to the tokenizer"
    assert output.err == ""


def test_a_default_is_said_unless_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    assert call(monkeypatch, "a 🐐") == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[0] == "a|␣|🐐"
    assert output.out.splitlines()[2] == "3 tokens, 3 characters (4 UTF-16 units)"
    assert output.err == "Cut by characters, numbered in this text; choose with --tokenizer or --run.\n"
    assert call(monkeypatch, "a 🐐", "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_colours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert call(monkeypatch, "a b\nc", "--tokenizer", "characters") == 0
    out = capsys.readouterr().out
    styles = re.findall(r"\x1b\[(30;48;2;[\d;]+)m", out)
    assert len(styles) == len(set(styles)) == 5, "neighbours differ"
    assert re.sub(r"\x1b\[[\d;]*m", "", out).startswith("a b↵\nc\n")


def test_many_tokens_are_cut_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(tokens_page, "MAX_TOKENS", 1000)
    text, page = tmp_path / "long.txt", tmp_path / "page.html"
    text.write_text("ab" * 1500)
    assert call(monkeypatch, str(text), "--tokenizer", "characters", "--out", str(page)) == 0
    out = capsys.readouterr().out
    assert "and 1,000 more; --json lists all." in out
    assert "3,000 tokens, 3,000 characters" in out
    assert f"Page: {page}" in out
    assert "Shown are the first 1,000 tokens." in page.read_text()


def test_json_of_a_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é 🐐".encode())))
    page = tmp_path / "page.html"
    assert call(monkeypatch, "-", "--tokenizer", "characters", "--json", "--out", str(page)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() >= {"kind", "tokenizer", "tokens", "num_tokens", "num_characters", "page"}
    assert (document["kind"], document["num_tokens"], document["num_characters"]) == ("text", 3, 3)
    assert document["tokens"][2] == {"id": 2, "text": "🐐", "start": 2, "stop": 3, "unknown": False}
    assert document["page"] == str(page)


def test_the_page_of_a_text(tmp_path: Path) -> None:
    text, page = "a </script><b>goat</b>\n🐐", tmp_path / "page.html"
    found = cut(text, tokenizer="characters", out=page)
    content = page.read_text()
    assert found.page == page
    assert "<b>" not in content
    assert "default-src 'none'" in content
    assert "<script" not in content
    shown = re.search(r'<div class="box text">(.*?)</div>', content, re.DOTALL)
    assert shown is not None
    titles = re.findall(r'title="token \d+, id (\d+)"', shown[1])
    assert [int(number) for number in titles] == [token.id for token in found.tokens]
    assert re.findall(r'class="c(\d)"', shown[1])[:7] == list("0123401")
    assert content.count("<tr><td>") == len(found.tokens)


@pytest.mark.parametrize(
    ("model", "counts", "numbers"),
    [
        ("perceiver_nano_patch2_28", "14 x 14 = 196 patches of 2 x 2 pixels = 196 tokens", 12),
        ("perceiver_nano_28", "28 x 28 = 784 pixels = 784 tokens", 3),
    ],
)
def test_inputs_of_a_perceiver(
    model: str,
    counts: str,
    numbers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32)).save("photo.png")
    assert call(monkeypatch, "photo.png", "--model", model, "--out", "page.html") == 0
    assert counts in capsys.readouterr().out
    page = Path("page.html").read_text()
    assert counts.rpartition(" = ")[0].replace(" x ", " \N{MULTIPLICATION SIGN} ") in page
    assert f" is an input: its {numbers} numbers as they are" in page


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ("", {}, DataError, "there is no text to cut"),
        ("goat", {"tokenizer": "subwords"}, SpecError, "subwords are learned from a text.*\n.*\n.*--run with a run"),
        ("goat", {"tokenizer": "words"}, SpecError, "words are learned from a text"),
        ("goat", {"tokenizer": "letters"}, UnknownNameError, "no tokenizer has this name"),
        ("goat", {"tokenizer": "words", "run": "x"}, SpecError, "--tokenizer and --run exclude each other"),
        ("goat", {"model": "vit_base_patch16_224"}, SpecError, "--model is for images"),
        ("goat", {"run": "nowhere"}, RunError, "nowhere has no tokenizer"),
        ("goat", {"tokenizer": "characters", "out": "no/where.html"}, InspectionError, "there is no folder no"),
        ("goat", {"tokenizer": "characters", "out": "."}, InspectionError, r"\. is a folder"),
        ("nowhere.txt", {}, DataError, "nowhere.txt cannot be read"),
        ("nowhere.jpg", {}, DataError, "nowhere.jpg cannot be read"),
        ("photo.png", {"tokenizer": "words"}, SpecError, "--tokenizer is for text"),
        ("photo.png", {"model": "vit_bace_patch16_224"}, UnknownNameError, "no model has this name"),
        ("photo.png", {"model": "resnetv2_50x1_bit"}, InspectionError, "does not cut images into patches"),
        ("broken.png", {}, DataError, "broken.png"),
    ],
)
def test_wrong_input_is_refused(
    source: str, options: dict, error: type, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32)).save("photo.png")
    Path("broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(error, match=message):
        tokens(source, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.png", "photo.png"]


def test_a_run_on_text_cuts_no_images(runs: dict[str, Path], tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "photo.png")
    with pytest.raises(RunError, match="is a run on text, not on images"):
        tokens(tmp_path / "photo.png", run=runs["translation"])


def test_wrong_input_is_exit_code_two(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert call(monkeypatch, "goat", "--tokenizer", "subwords") == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("SpecError: subwords are learned from a text")


def test_a_text_that_looks_special_is_cut_as_it_is(runs: dict[str, Path]) -> None:
    for token in SPECIAL:
        parts = cut(token, run=runs["translation"]).tokens
        assert "".join(part.text for part in parts) == token
        assert len(parts) > 1


def test_texts_need_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['vitrail', 'tokens', 'goat', '--tokenizer', 'characters']\n"
        "from vitrail.__main__ import build_app\n"
        "try: build_app()()\nfinally: assert 'torch' not in sys.modules, 'torch'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "g|o|a|t"
