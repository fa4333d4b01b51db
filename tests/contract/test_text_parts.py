"""The parts that models of text are made of, without a run: beam search, masks, positions, baselines, scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conftest import fill
from vitrail import plug
from vitrail.errors import SpecError
from vitrail.metric.ngram import EDGE, NeighbourCounts
from vitrail.metric.tokens import fraction_interval, mean_per_token, normal_interval
from vitrail.metric.translation import score_translations
from vitrail.model.language import LanguageModel, Spec
from vitrail.nn.dot_product import attend, attention_weights
from vitrail.run.beam import beam_search
from vitrail.run.token_stream import TokenStream


def test_beam_search_finds_the_best() -> None:
    """With a beam as wide as everything there is, it is the best of all hypotheses; a beam of one is greedy."""
    torch.manual_seed(0)
    module = plug.load("vitrail.model", "seq2seq")
    spec = {"vocab": 5, "pad": 0, "context": 4, "width": 16, "depth": 1, "decoder_depth": 1, "heads": 2, "hidden": 32}
    model = module.Model(module.Spec.parse(spec)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    source, start, end = torch.tensor([[3, 4, 2], [4, 2, 0]]), 1, 2
    found = beam_search(model, source, start=start, end=end, pad=0, beam=40)
    for row in range(2):
        best = max(all_hypotheses(model, source[row : row + 1], start, end), key=lambda each: each[1])
        assert found[row].ids == best[0]
        assert found[row].score == pytest.approx(best[1], abs=1e-5)
    greedy = beam_search(model, source, start=start, end=end, pad=0, beam=1)
    for row in range(2):
        ids = [start]
        while len(ids) < 4 and ids[-1] != end:
            logits = model(source[row : row + 1], torch.tensor([ids]))[0, -1]
            logits[[0, start]] = -torch.inf
            ids.append(int(logits.argmax()))
        assert list(greedy[row].ids) == [each for each in ids[1:] if each != end]


def all_hypotheses(model: Any, source: torch.Tensor, start: int, end: int) -> list[tuple[tuple[int, ...], float]]:
    """Every sequence of up to three tokens with its normalised score."""
    found = []

    def extend(ids: list[int], score: float) -> None:
        with torch.no_grad():
            logits = model(source, torch.tensor([ids]))[0, -1]
        logits[[0, start]] = -torch.inf
        for token, value in enumerate(logits.log_softmax(dim=0).tolist()):
            if token in {0, start}:
                continue
            length, total = len(ids), score + value
            if token == end or length == 3:
                kept = (*ids[1:], *(() if token == end else (token,)))
                found.append((kept, total / ((5 + length) / 6)))
            else:
                extend([*ids, token], total)

    extend([start], 0.0)
    return found


def test_the_decks_masks() -> None:
    """Deck 000: tril, its logarithm, and the mean over all earlier tokens, as our masked attention computes them."""
    tokens = torch.zeros(1, 1, 8, 4)
    weights = attention_weights(tokens, tokens, causal=True)[0, 0]
    tril = torch.tril(torch.ones(8, 8))
    assert torch.equal((weights > 0).float(), tril)
    scores = torch.zeros(8, 8).masked_fill(tril == 0, float("-inf"))
    # Logarithms are rounded differently with AVX2 and AVX-512.
    assert torch.allclose(weights.log() + torch.arange(1.0, 9.0).log()[:, None], scores, atol=1e-6)
    printed = [[round(1 / (row + 1), 4) if column <= row else 0.0 for column in range(8)] for row in range(8)]
    assert [[round(value, 4) for value in row] for row in weights.tolist()] == printed
    values = torch.randn(1, 1, 8, 4)
    means = values.cumsum(dim=2) / torch.arange(1.0, 9.0)[:, None]
    assert torch.allclose(attend(tokens, tokens, values, causal=True), means, atol=1e-6)


def test_neighbours_guess_hidden_tokens() -> None:
    counts = NeighbourCounts([[1, 2, 3], [1, 2, 3], [1, 4, 3], [5, 4, 6]])
    assert counts.trigram(1, 3) == 2
    assert counts.trigram(5, 9) == 4
    assert counts.trigram(None, 6) == 4
    assert counts.trigram(9, 9) == counts.trigram(None, None) == counts.unigram() == 1
    assert counts.trigram(EDGE, 4) == 1


def test_scores_per_token_know_their_noise() -> None:
    units = torch.tensor([4.0, 1.0, 10.0, 5.0])
    loss, error = mean_per_token(2 * units, units)
    assert (loss, error) == (2.0, 0.0)
    assert normal_interval(loss, error) == (2.0, 2.0)
    totals = torch.tensor([8.0, 4.0, 20.0, 8.0])
    loss, error = mean_per_token(totals, units)
    assert loss == 2.0
    rng = torch.Generator().manual_seed(0)
    picks = [torch.randint(0, 4, (4,), generator=rng) for _ in range(4000)]
    spread = torch.stack([totals[pick].sum() / units[pick].sum() for pick in picks]).std().item()
    assert error == pytest.approx(spread, rel=0.4)


def test_bleu_is_sacrebleus() -> None:
    references = ["ein Mann reitet ein Pferd .", "zwei Kinder spielen im Park ."]
    score = score_translations(references, references)
    assert score.bleu == pytest.approx(100.0)
    assert score.n == 2
    lower = score_translations([each.lower() for each in references], references)
    assert lower.bleu < 100.0
    assert lower.bleu_lowercase == pytest.approx(100.0)
    assert "case:lc" in lower.signature_lowercase


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_positions_matter(position: str) -> None:
    """Exchanging two tokens changes the prediction; a shift does not, if positions are rotary."""
    torch.manual_seed(0)
    module = plug.load("vitrail.model", "language")
    spec = {"vocab": 9, "context": 16, "width": 32, "depth": 2, "heads": 2, "hidden": 64, "position": position}
    model = module.Model(module.Spec.parse(spec)).eval()
    torch.nn.init.normal_(model.embed.weight)
    with torch.no_grad():
        for block in model.blocks:
            torch.nn.init.normal_(block.attn.qkv.weight, std=0.3)
            torch.nn.init.normal_(block.attn.proj.weight, std=0.3)
        first, second = (model(torch.tensor([ids]))[0, -1] for ids in ([1, 2, 3, 4], [2, 1, 3, 4]))
    assert (first - second).abs().max() > 1e-3


def test_settings_are_checked() -> None:
    module = plug.load("vitrail.model", "language")
    with pytest.raises(SpecError, match="heads of an even width"):
        module.Spec.parse({"width": 15, "heads": 5})
    assert module.Spec.parse({"width": 15, "heads": 5, "position": "learned"}).heads == 5


def test_positions_start_as_small_as_tokens() -> None:
    module = plug.load("vitrail.model", "language")
    model = module.Model(module.Spec.parse({"position": "learned"}))
    assert model.embed.positions.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.embed.weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("word", ["no", "1", "yes"])
def test_a_setting_that_is_a_word_stays_one(word: str) -> None:
    """`no` is Norwegian."""
    settings = plug.load("vitrail.training.recipe", "translate").Spec().override_words([f"target={word}"])
    assert settings.targets == (word,)


def test_an_interval_of_a_fraction_stays_between_0_and_1() -> None:
    low, high = fraction_interval(0.1, 0.08, 10)
    assert 0.0 < low < 0.1 < high < 1.0
    assert fraction_interval(0.0, 0.0, 20)[1] > 0.05


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_a_stream_of_tokens_computes_what_the_model_does(position: str) -> None:
    """Step by step, as the model does at once; and again after another prompt."""
    spec = Spec.parse(
        {"vocab": 11, "context": 12, "width": 8, "depth": 2, "heads": 2, "hidden": 20, "position": position}
    )
    model = fill(LanguageModel(spec), 0.3).eval()
    stream = TokenStream(model)
    generator = torch.Generator().manual_seed(0)
    for num_read in (3, 1):
        ids = torch.randint(spec.vocab, (1, spec.context), generator=generator)
        with torch.inference_mode():
            expected = model(ids)[0, num_read - 1 :]
            row = ids[0].tolist()
            found = [stream.read(row[:num_read]), *(stream.step(number) for number in row[num_read:])]
        assert torch.allclose(torch.stack(found), expected, atol=1e-5)
    assert stream.cache.numel() * 4 == 2 * spec.depth * spec.context * spec.width * 4
