"""Texts are explained for every kind of run on text: the page holds the model's own attention and predictions."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.text_runs import CONTEXT, KINDS, make_run
from vitrail.data.text.display import display_token
from vitrail.data.text.tokenizer import learn_tokenizer
from vitrail.errors import DataError, InspectionError, RunError, VitrailError
from vitrail.inspection import text_trace
from vitrail.inspection.text_explanation import TextExplanation, explain_text
from vitrail.nn.attention.full import Attention, CrossAttention
from vitrail.nn.dot_product import attention_weights
from vitrail.run.calibrate import read_calibration
from vitrail.run.text_model import load_text_model
from vitrail.verbs.explain import explain

TEXTS = {
    "language": "the sheep and goat",
    "masked_language": "the [MASK] and goat are [MASK] .",
    "translation": "the sheep and goat",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {kind: make_run(kind, folder) for kind in KINDS}


@pytest.fixture(scope="module")
def explained(runs: dict[str, Path]) -> dict[str, TextExplanation]:
    return {kind: explain_text(load_text_model(runs[kind]), text) for kind, text in TEXTS.items()}


def json_of(page: str) -> str:
    return page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]


def data_of(page: str) -> dict[str, Any]:
    return json.loads(json_of(page))


def unpack(text: str, *shape: int) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2").reshape(shape) / 65535


def maps_of(data: dict[str, Any]) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """Each map of a page: its weights [L, H, N, M] and its rollout."""
    found = {}
    for each in data["maps"]:
        rows, columns = len(data["sequences"][each["rows"]]), len(data["sequences"][each["columns"]])
        rollout = None if each["rollout"] is None else unpack(each["rollout"], rows, columns)
        found[each["name"]] = (unpack(each["weights"], each["layers"], each["heads"], rows, columns), rollout)
    return found


def recorded(monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module, *inputs: torch.Tensor) -> dict[str, list]:
    """The attention weights of a forward pass, recorded inside the attention layers themselves."""
    kept: dict[str, list] = {"forward": [], "step": [], "cross": []}
    forward, step, cross = Attention.forward, Attention.step, CrossAttention.step

    def see(self, tokens):
        kept["forward"].append(self.weights(tokens))
        return forward(self, tokens)

    def see_step(self, tokens, cache=None):
        kept["step"].append(self.weights(tokens))
        return step(self, tokens, cache)

    def see_cross(self, tokens, context):
        kept["cross"].append(attention_weights(self.split_queries(tokens), context.k, mask=context.mask))
        return cross(self, tokens, context)

    monkeypatch.setattr(Attention, "forward", see)
    monkeypatch.setattr(Attention, "step", see_step)
    monkeypatch.setattr(CrossAttention, "step", see_cross)
    with torch.no_grad():
        model(*inputs)
    return kept


@pytest.mark.parametrize("kind", KINDS)
def test_rows_on_the_page_are_the_weights_of_the_forward_pass(
    kind: str, runs: dict[str, Path], explained: dict[str, TextExplanation], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(explained[kind].page())
    model = load_text_model(runs[kind]).model
    inputs = [
        torch.tensor([[number for number, _ in data["sequences"][name]]])
        for name in (("source", "target") if kind == "translation" else ("text",))
    ]
    kept, names = recorded(monkeypatch, model, *inputs), {"forward": "self", "step": "decoder", "cross": "cross"}
    names["forward"] = "encoder" if kind == "translation" else "self"
    maps = maps_of(data)
    assert set(maps) == {names[each] for each, weights in kept.items() if weights}
    for each, weights in kept.items():
        if weights:
            assert maps[names[each]][0] == pytest.approx(torch.cat(weights).numpy(), abs=1 / 65535), each


@pytest.mark.parametrize("kind", KINDS)
def test_rows_sum_to_one_and_causal_ones_see_nothing_later(kind: str, explained: dict[str, TextExplanation]) -> None:
    data = data_of(explained[kind].page())
    for name, (weights, rollout) in maps_of(data).items():
        assert weights.shape[:2] == (2, 2)
        for each in (weights,) if rollout is None else (weights, rollout):
            assert each.sum(axis=-1) == pytest.approx(np.ones(each.shape[:-1]), abs=1e-3)
            above = np.triu(np.ones(each.shape[-2:], dtype=bool), 1)
            if kind == "language" or name == "decoder":
                assert not each[..., above].any()
            else:
                assert each[..., above].any()
        assert (rollout is None) == (name == "cross")


def test_rollout_multiplies_the_blocks(explained: dict[str, TextExplanation]) -> None:
    """Abnar and Zuidema: each block's mean over heads, averaged with the identity, one after the other."""
    (attention,) = explained["masked_language"].maps
    first, second = ((heads.mean(axis=0) + np.eye(heads.shape[-1])) / 2 for heads in attention.weights)
    assert attention.rollout == pytest.approx(second @ first, abs=1e-6)


def test_a_language_model_predicts_the_next_token_at_each_place(
    runs: dict[str, Path], explained: dict[str, TextExplanation]
) -> None:
    opened, found = load_text_model(runs["language"]), explained["language"]
    ids = opened.tokenizer.encode(TEXTS["language"])
    with torch.no_grad():
        probabilities = opened.model(torch.tensor([ids.tolist()]))[0].softmax(dim=1)
    assert [each.place for each in found.predictions] == list(range(len(ids)))
    for row, prediction, following in zip(probabilities, found.predictions, [*ids[1:], None], strict=True):
        assert [token.id for token, _ in prediction.tokens] == row.topk(5).indices.tolist()
        assert [value for _, value in prediction.tokens] == pytest.approx(row.topk(5).values.tolist(), abs=1e-6)
        if following is None:
            assert prediction.actual is None
        else:
            assert prediction.actual is not None
            assert prediction.actual[0].id == following
            assert prediction.actual[1] == pytest.approx(row[following].item(), abs=1e-6)


def test_a_masked_model_predicts_each_mask_with_calibrated_probabilities(
    runs: dict[str, Path], explained: dict[str, TextExplanation]
) -> None:
    opened, found = load_text_model(runs["masked_language"]), explained["masked_language"]
    assert [token.text for token in found.sequences["text"]] == TEXTS["masked_language"].split()
    assert [each.place for each in found.predictions] == [1, 5]
    ids = opened.tokenizer.encode_marked(TEXTS["masked_language"])
    with torch.no_grad():
        logits = opened.model(torch.tensor([ids.tolist()]))[0, 5]
    temperature = read_calibration(runs["masked_language"]).temperature
    assert temperature != 1
    best = (logits / temperature).softmax(dim=0).max().item()
    assert found.predictions[1].tokens[0][1] == pytest.approx(best, abs=1e-6)
    without = explain_text(opened, "the goat")
    assert without.predictions == ()
    assert without.summary == "no [MASK] in the text"
    assert without.page()


def test_a_translation_is_what_beam_search_finds(runs: dict[str, Path], explained: dict[str, TextExplanation]) -> None:
    from vitrail.verbs.generate import generate

    found = explained["translation"]
    assert found.translation == generate(runs["translation"], TEXTS["translation"]).text
    sequences = found.sequences
    assert sequences["source"][-1].text == sequences["written"][-1].text == "[EOS]"
    assert sequences["target"][0].text == "[BOS]"
    assert sequences["target"][1:] == sequences["written"][:-1]
    assert found.text == "translate English to German: the sheep and goat"
    french = explain_text(load_text_model(runs["translation"]), TEXTS["translation"], to="fr")
    assert french.text == "translate English to French: the sheep and goat"


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_one_offline_file(kind: str, runs: dict[str, Path]) -> None:
    text = "the </script><b>goat</b> & “sheep” 🐐"
    page = explain_text(load_text_model(runs[kind]), text).page()
    assert page.count("</script>") == 2  # its own
    assert "<" not in json_of(page)  # so that no token, or tokens beside each other, can end the element
    assert "<b>goat" not in page
    assert "default-src 'none'" in page
    assert not re.search(r"\b(src|href)=|https?://|@import|url\(", page)
    assert "The goat, worked by hand" in page
    tokens = [text for row in data_of(page)["sequences"].values() for _, text in row]
    assert ("<" in "".join(tokens)) == (kind == "translation")  # the others do not know this character


def test_the_goat_is_on_the_page(explained: dict[str, TextExplanation]) -> None:
    page = explained["language"].page()
    for word in ("The sheep and goat are grazing.", "Messi is the goat, not Ronaldo.", "[3.76, 1.15]", "[1.15, 3.76]"):
        assert word in page
    assert "weights 0.43, 0.00, 0.43, 0.00, 0.14 and the sum [1.08, 3.79]" in page


def test_a_long_text_keeps_the_mean_over_heads(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened, text = load_text_model(runs["language"]), TEXTS["language"]
    (full,) = explain_text(opened, text).maps
    num = 2 * len(text) ** 2
    monkeypatch.setattr(text_trace, "MAX_WEIGHTS", num)
    found = explain_text(opened, text)
    (mean,) = found.maps
    assert mean.weights == pytest.approx(full.weights.mean(axis=1, keepdims=True), abs=1e-6)
    assert mean.rollout == pytest.approx(full.rollout, abs=1e-6)
    assert "with 2 heads each" in found.page()
    monkeypatch.setattr(text_trace, "MAX_WEIGHTS", num - 1)
    with pytest.raises(InspectionError, match=r"too long for a page\.\n  Got 18 tokens, 648 attention weights"):
        explain_text(opened, text)


def test_outputs_that_are_not_finite_are_refused(runs: dict[str, Path]) -> None:
    opened = load_text_model(runs["language"])
    torch.nn.init.constant_(opened.model.norm.bias, torch.nan)
    with pytest.raises(InspectionError, match="outputs are not finite"):
        explain_text(opened, "goat")


def test_tokens_are_shown_with_their_spaces_and_bytes() -> None:
    tokenizer = learn_tokenizer("subwords", ["the goat\tand\nthe goat 🐐"], vocab=260)
    shown = [display_token(tokenizer, number) for number in tokenizer.encode(" the\n\t🐐\x1b")]
    assert "".join(shown) == "·the↵⇥<F0><9F><90><90>\\x1b"
    assert display_token(tokenizer, tokenizer.special("[MASK]")) == "[MASK]"


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
        ("language", ["goat", "--class", "goat"], "InspectionError: --class is for images.\n  Got a run on text"),
        ("language", ["goat", "--method", "rollout"], "InspectionError: --method is for images."),
        (
            "language",
            ["goat", "--class", "a", "--method", "b"],
            "InspectionError: --class and --method are for images.",
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
    assert issubclass(RunError, VitrailError)


def test_a_full_context_is_explained(runs: dict[str, Path]) -> None:
    found = explain_text(load_text_model(runs["language"]), ("goat " * 12)[:CONTEXT])
    assert len(found.sequences["text"]) == CONTEXT
    assert found.figure().axes
