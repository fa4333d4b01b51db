"""Texts are explained for every kind of run on text: the page holds the model's own attention and predictions."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.text_runs import CONTEXT, KINDS, TEXTS, make_run
from vitrail.data.text.display import display_token
from vitrail.data.text.tokenizer import learn_tokenizer
from vitrail.errors import InspectionError
from vitrail.inspection import text_trace
from vitrail.inspection.text_explanation import TextExplanation, explain_text
from vitrail.nn.attention.full import Attention, CrossAttention
from vitrail.nn.dot_product import attention_weights
from vitrail.run.calibrate import read_calibration
from vitrail.run.fill_mask import fill_masks
from vitrail.run.text_model import load_text_model


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
    calibration = read_calibration(runs["masked_language"])
    assert calibration.temperature != 1
    logits[sorted(opened.tokenizer.special_ids)] = -torch.inf
    best = (logits / calibration.temperature).softmax(dim=0).max().item()
    assert found.predictions[1].tokens[0][1] == pytest.approx(best, abs=1e-6)
    filled = fill_masks(opened, TEXTS["masked_language"])  # what vitrail predict prints
    for mask, prediction in zip(filled.masks, found.predictions, strict=True):
        assert [token for token, _ in mask] == [token.text for token, _ in prediction.tokens]
        assert [value for _, value in mask] == pytest.approx([value for _, value in prediction.tokens])
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
    assert "".join(shown) == "␣the↵⇥<F0><9F><90><90>␛"
    assert display_token(tokenizer, tokenizer.special("[MASK]")) == "[MASK]"


def test_a_full_context_is_explained(runs: dict[str, Path]) -> None:
    found = explain_text(load_text_model(runs["language"]), ("goat " * 12)[:CONTEXT])
    assert len(found.sequences["text"]) == CONTEXT
    assert found.figure().axes
