"""The reports of runs on text: their numbers, odd characters, and the same page from memory and from files."""

from __future__ import annotations

import json
import math
import re
import shutil
import unicodedata
from pathlib import Path

import pytest

from tests.contract.colours import exit_code
from tests.contract.odd_texts import FAST, MARKUP, ODD, SETTINGS, data_of, learn_text, write_texts
from tests.contract.small_texts import RECIPES, TINY
from vitrail import plug
from vitrail.data.text.display import visible
from vitrail.data.text.tokenizer import learn_tokenizer
from vitrail.errors import RunError
from vitrail.kind import language, masked_language, translation
from vitrail.report import language as language_report
from vitrail.report import masked_language as masked_report
from vitrail.report.percent import percent, percent_range
from vitrail.report.run import read_files, training_charts
from vitrail.report.tokens import coloured_text, costly_tokens, token_texts
from vitrail.report.translation import find_extremes
from vitrail.run.translation_rows import TranslationRow
from vitrail.sums import SUMS

KINDS = {"language": language, "masked_language": masked_language, "translate": translation}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_texts(tmp_path_factory.mktemp("text"))
    for recipe in RECIPES:
        learn_text(folder, recipe)
    return folder


def run_of(home: Path, recipe: str) -> Path:
    return home / f"run <b> {recipe}"


def page_of(home: Path, recipe: str) -> str:
    return (run_of(home, recipe) / "report.html").read_text(encoding="utf-8")


def val_of(home: Path, recipe: str) -> dict:
    return json.loads((run_of(home, recipe) / "result.json").read_text())["val"]


def test_language_numbers(home: Path) -> None:
    page, val = page_of(home, "language"), val_of(home, "language")
    low, high = val["interval"]
    assert f'<p class="headline">{math.exp(val["loss"]):.2f}</p>' in page
    assert f"interval {math.exp(low):.2f} to {math.exp(high):.2f}:" in page
    for number in (val["loss"], low, high, val["bits"], val["bits_per_character"]):
        assert f"{number:.4f}" in page
    assert f"{val['n']:,} validation tokens" in page
    assert re.findall(r"<h3>Temperature (.*?)</h3>", page) == ["0.5", "0.8", "1.0"]


def test_masked_numbers(home: Path) -> None:
    page, val = page_of(home, "masked_language"), val_of(home, "masked_language")
    facts = json.loads((run_of(home, "masked_language") / "account.json").read_text())["facts"]
    assert f'<p class="headline">{percent(val["accuracy"])}</p>' in page
    for each in (val["baselines"]["unigram"], val["baselines"]["trigram"]):
        assert f"<td>{percent(each['accuracy'])}</td><td>{percent_range(each['interval'])}</td>" in page
    for ece in facts["ece"]:
        assert percent(ece, 2) in page
    assert page.count("✓ correct") + page.count("✗ wrong") == page.count("<mark>") > 10


def test_translation_numbers(home: Path) -> None:
    page, val = page_of(home, "translate"), val_of(home, "translate")
    assert f'<p class="headline">{val["bleu"]:.1f}</p>' in page
    for name, score in (("German", val["languages"]["de"]), ("French", val["languages"]["fr"])):
        interval = f"{score['interval'][0]:.1f} to {score['interval'][1]:.1f}"
        cells = [name, f"{score['bleu']:.1f}", interval, f"{score['chrf']:.1f}", f"{score['bleu_lowercase']:.1f}"]
        assert "".join(f"<td>{cell}</td>" for cell in cells) in page
        assert score["signature"] in page
        assert score["signature_lowercase"] in page
    assert page.count("<dt>reference</dt>") == 12, "six sentences to two languages"


@pytest.mark.parametrize("recipe", ["language", "masked_language"])
def test_the_measured_losses_are_those_of_the_result(home: Path, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All validation windows and lines are few enough to be measured."""
    measured = []
    module = {"language": language_report, "masked_language": masked_report}[recipe]
    monkeypatch.setattr(module, "costly_tokens", lambda ids, losses, _: measured.append((ids, losses)) or [])
    (run_of(home, recipe) / "report.html").unlink()
    learn_text(home, recipe)
    (run_of(home, recipe) / "report.html").unlink()
    monkeypatch.undo()
    learn_text(home, recipe)
    ((ids, losses),) = measured
    assert len(ids) == len(losses) == val_of(home, recipe)["n"]
    assert sum(losses) / len(losses) == pytest.approx(val_of(home, recipe)["loss"], rel=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_in_the_text_becomes_markup(home: Path, recipe: str) -> None:
    page = page_of(home, recipe)
    assert "<script" not in page
    assert "<b>" not in page
    assert "run &lt;b&gt;" in page
    assert "script" in page, "the text is shown"
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert not [char for char in page if unicodedata.category(char) in {"Cc", "Cf"} and char != "\n"]


def test_odd_characters_are_visible(home: Path) -> None:
    page = page_of(home, "translate")
    assert "&lt;script&gt;alert(1)&lt;/script&gt; bell␇ tab⇥ turned\\u202e café end" in page
    assert visible("a\nb\r\x7f\x00", mark_spaces=False) == "a↵b␍\\x7f␀"
    assert visible("a\nb", line_breaks=True) == "a↵\nb"


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_report_can_be_written_again(home: Path, recipe: str) -> None:
    before = page_of(home, recipe)
    (run_of(home, recipe) / "report.html").unlink()
    learn_text(home, recipe)
    assert page_of(home, recipe) == before


@pytest.mark.parametrize("recipe", ["language", "masked_language"])
def test_a_loss_that_is_not_finite(home: Path, recipe: str, tmp_path: Path) -> None:
    shutil.copytree(run_of(home, recipe), tmp_path / "run")
    account = tmp_path / "run" / "account.json"
    document = json.loads(account.read_text())
    document["result"]["val"].update(loss=None, bits=None, interval=None, accuracy_interval=None)
    account.write_text(json.dumps(document))
    (tmp_path / "run" / SUMS).unlink()  # the change is accepted
    kind = KINDS[recipe]
    settings = plug.load("vitrail.training.recipe", recipe).Spec()
    kind.write_report(tmp_path / "run", kind.open_source(data_of(home, recipe), settings))
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert ("No finite loss" in page) == (recipe == "language")
    assert 'id="tokens"' not in page
    assert 'id="curves"' in page


def test_a_run_of_another_kind(home: Path) -> None:
    with pytest.raises(RunError, match=r"not a run of the kind translation.\n  Got a run of the kind language"):
        read_files(run_of(home, "language"), kind="translation")


def test_losses_are_plotted_in_both_units() -> None:
    metrics = [{"step": step, "loss": 3.0 / step, "val_loss": 2.0 / step} for step in (1.0, 2.0)]
    ((chart, names),) = training_charts([("", metrics)], per_token=True)
    assert names == ["training loss", "validation loss"]
    assert "nats per token" in chart
    assert "validation loss ends at 1 (1.44 bits per token)" in chart
    assert len(training_charts([("", [{**each, "val_token_accuracy": 0.5} for each in metrics])])) == 2


def test_tokens_add_up_to_the_text() -> None:
    text = f"{MARKUP} {ODD} \N{GRINNING FACE}"
    tokenizer = learn_tokenizer("subwords", [text], vocab=256)
    ids = tokenizer.encode(text)
    assert len(ids) > len(text), "characters of several tokens"
    assert "".join(token_texts(ids, tokenizer)) == text
    coloured = coloured_text(ids, ids.astype(float), tokenizer)
    assert "".join(each.text for each in coloured) == visible(text, mark_spaces=False)
    assert sum(each.loss for each in coloured) == ids.sum()


def test_the_tokens_that_cost_most() -> None:
    tokenizer = learn_tokenizer("characters", ["ab c"])
    ids = tokenizer.encode("aab c")
    rows = costly_tokens(ids, [1.0, 2.0, 1.0, 4.0, 0.0], tokenizer)
    assert rows == [("␣", 1, 4.0, 0.5), ("a", 2, 1.5, 0.375), ("b", 1, 1.0, 0.125)]


def test_best_and_worst_translations_are_different_ones() -> None:
    texts = ["a red house", "a red mouse", "a blue sky"]
    rows = [TranslationRow("val", str(number), "de", "", text, texts[0]) for number, text in enumerate(texts)]
    found = find_extremes("de", rows)
    assert [each.row.name for each in found.best] == ["0"]
    assert [each.row.name for each in found.worst] == ["2"]
    assert found.best[0].chrf == pytest.approx(100)
    assert not find_extremes("de", rows[:1]).worst


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (
            "language",
            r"\d\.\d{3} nats per token \(\d\.\d{3} bits\) on \d+ validation tokens \(95 % interval .* to .*\)",
        ),
        (
            "masked_language",
            r"accuracy .* % on \d+ masked validation tokens .*; most frequent token .* %, by neighbours",
        ),
        ("translate", r"BLEU .* \(de\) on 6 validation sentences \(95 .*\), chrF .*; BLEU .* \(fr\) .*, chrF"),
    ],
)
def test_the_command_line(home: Path, recipe: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FAST, *TINY, *SETTINGS[recipe], "--recipe", recipe, "--run", str(run_of(home, recipe)), "--quiet"]
    assert exit_code(["train", str(data_of(home, recipe)), *words]) == 0
    printed = capsys.readouterr().out
    assert re.search(said, printed)
    assert "images" not in printed
