"""Models of text, from training to every verb that takes them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import copy_unsummed
from tests.contract import forked
from tests.contract.disturbed import KILLED, wait_until
from tests.contract.forked import bits
from tests.contract.ranks import losses, run_two_ranks
from tests.contract.small_texts import RECIPES, sentences, words_of, write_texts
from tests.forge import Forge, command
from vitrail.data.text.tokenizer import learn_tokenizer
from vitrail.errors import DataError, RunError, VitrailError, WeightsError
from vitrail.run.artefact import load
from vitrail.run.sampling import sample_tokens
from vitrail.run.text_model import load_text_model
from vitrail.run.translation import translate_all
from vitrail.verbs.convert import convert
from vitrail.verbs.evaluate import evaluate
from vitrail.verbs.generate import generate
from vitrail.verbs.predict import predict_texts
from vitrail.verbs.train import train

SHORT = ("steps=12", "seed=4")
LONG = ("steps=150", "eval_every=75", "save_every=75", "lr=0.01")


class Runs:
    """One finished run of each recipe, and the texts that they were trained on."""

    def __init__(self, folder: Path, forge: Forge) -> None:
        self.folder, self.forge = folder, forge
        self.texts = write_texts(folder / "texts")
        self.paths = {recipe: folder / recipe for recipe in RECIPES}
        for recipe, path in self.paths.items():
            log = folder / f"{recipe}.log"
            code = forge.run(command, words_of(recipe, self.texts, path, *LONG), log=log)
            assert code == 0, log.read_text()

    def result(self, recipe: str) -> dict[str, Any]:
        return json.loads((self.paths[recipe] / "result.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"), forge)


def test_all_three_learn(runs: Runs) -> None:
    language, masked, translation = (runs.result(recipe)["val"] for recipe in RECIPES)
    assert language.keys() >= {"loss", "bits", "n", "interval"}
    assert language["loss"] < 2.2, "characters: 3.2 without learning"
    assert language["interval"][0] < language["loss"] < language["interval"][1]
    assert language["bits"] == pytest.approx(language["loss"] * 1.442695)
    assert masked.keys() >= {"loss", "bits", "n", "interval", "accuracy", "baselines"}
    assert masked["accuracy"] > masked["baselines"]["unigram"]["accuracy"]
    assert translation.keys() >= {"bleu", "chrf", "loss", "n", "interval"}
    assert translation["n"] == 10
    assert translation["languages"]["de"]["signature"].startswith("nrefs:1|")


def test_a_run_says_what_it_is(runs: Runs) -> None:
    for recipe, kind in zip(RECIPES, ("language", "masked_language", "translation"), strict=True):
        path = runs.paths[recipe]
        opened = load_text_model(path)
        assert opened.kind == kind
        assert opened.model.spec.vocab == opened.tokenizer.num_tokens
        for name in ("tokenizer.json", "tokenizer_config.json", "README.md", "config.yaml", "report.html"):
            assert (path / name).is_file(), name
        with pytest.raises(RunError, match=r"is a run on text(.|\n)*vitrail generate"):
            load(path)


@pytest.mark.parametrize("recipe", RECIPES)
def test_killed_at_random_ends_with_the_same_bits(recipe: str, runs: Runs, tmp_path: Path) -> None:
    calm, killed, notes = tmp_path / "calm", tmp_path / "killed", tmp_path / "notes"
    assert runs.forge.run(command, words_of(recipe, runs.texts, calm, *SHORT), log=tmp_path / "log") == 0
    words, rng = words_of(recipe, runs.texts, killed, *SHORT), random.Random(0)
    for kill in range(3):
        notes.write_text("")
        pid = runs.forge.start(command, words, partial(forked.note_steps, notes), log=tmp_path / "log")
        wait_until(lambda: len(notes.read_text().split()) > kill)  # noqa: B023 - called at once
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
        assert runs.forge.wait(pid) == KILLED
    assert runs.forge.run(command, words, log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert bits(killed) == bits(calm)
    assert (killed / "tokenizer.json").read_bytes() == (calm / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_processes_agree(recipe: str, runs: Runs, tmp_path: Path) -> None:
    more = ("steps=8", "optimizer=sgd", "lr=0.05", "warmup=0.0", "eval_every=2", "model.dropout_rate=0.0")
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert runs.forge.run(command, words_of(recipe, runs.texts, alone, *more), log=tmp_path / "log") == 0
    run_two_ranks(words_of(recipe, runs.texts, together, *more), tmp_path)
    assert len(losses(alone)) >= 8
    assert losses(together) == pytest.approx(losses(alone), abs=1e-5)


def test_the_cache_changes_nothing(runs: Runs) -> None:
    """The same tokens with and without it, also beyond the context, and its memory is what arithmetic says."""
    opened = load_text_model(runs.paths["language"])
    prompt = opened.tokenizer.encode("a man rides")
    for temperature in (0.0, 0.9):
        options: dict[str, Any] = {"num": 40, "temperature": temperature, "top_k": 12, "seed": 3}
        cached, plain = (list(sample_tokens(opened.model, prompt, **options, cached=each)) for each in (True, False))
        assert cached == plain
        assert len(cached) == 40
    with torch.inference_mode():
        _, caches = opened.model.step(torch.from_numpy(prompt)[None])
    spec = opened.model.spec
    total = sum(tensor.numel() * tensor.element_size() for cache in caches for tensor in (cache.k, cache.v))
    assert total == 2 * spec.depth * len(prompt) * spec.width * 4


def test_generation(runs: Runs) -> None:
    run = runs.paths["language"]
    shown: list[str] = []
    first = generate(run, "a man", length=20, seed=1, show=shown.append)
    assert "".join(shown) == first.text
    assert first.num_tokens == 20
    assert generate(run, "a man", length=20, seed=1).text == first.text
    assert generate(run, "a man", length=20, seed=2).text != first.text
    greedy = [generate(run, "a man", length=10, temperature=0.0, seed=seed).text for seed in (1, 2)]
    assert greedy[0] == greedy[1] == generate(run, "a man", length=10, top_k=1).text


def test_a_trained_translator_translates(runs: Runs) -> None:
    result = generate(runs.paths["translate"], sentences(1)[0][0])
    assert result.num_tokens > 2
    asked = generate(runs.paths["translate"], f"translate English to German: {sentences(1)[0][0]}", to=None)
    assert asked.text == result.text


def test_a_sentence_is_translated_the_same_alone_and_in_a_batch(runs: Runs) -> None:
    opened = load_text_model(runs.paths["translate"])
    sources = [opened.tokenizer.encode(f"translate English to German: {first}") for first, _ in sentences(6, seed=9)]
    together = translate_all(opened.model, opened.tokenizer, sources)
    assert together == [translate_all(opened.model, opened.tokenizer, [each])[0] for each in sources]


def test_masks_are_filled(runs: Runs) -> None:
    (filled,) = predict_texts(runs.paths["masked_language"], ["a [MASK] rides a [MASK]."], top=3)
    assert len(filled.masks) == 2
    for mask in filled.masks:
        shares = [share for _, share in mask]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1
    assert "[MASK]" not in filled.filled
    calibration = json.loads((runs.paths["masked_language"] / "calibration.json").read_text())
    assert calibration["n"] > 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_evaluating_again_gives_the_same_scores(recipe: str, runs: Runs) -> None:
    data = runs.texts / ("pairs" if recipe == "translate" else "story.txt")
    scores: Any = evaluate(runs.paths[recipe], data, split="val")
    assert not scores.learned_from
    stored = runs.result(recipe)["val"]
    assert scores.scores["loss"] == pytest.approx(stored["loss"], abs=1e-5)
    assert scores.scores["n"] == stored["n"]
    assert evaluate(runs.paths[recipe], data, split="train").learned_from  # type: ignore[union-attr]


def test_another_text_is_evaluated_as_a_whole(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("the dog sees the ball.\n" * 5)
    scores: Any = evaluate(runs.paths["language"], tmp_path / "other.txt")
    assert scores.split == "all"
    assert scores.scores["n"] == 23 * 5 - 1


def test_data_with_a_test_split_only(runs: Runs, tmp_path: Path) -> None:
    for language in ("en", "de"):
        text = (runs.texts / "pairs" / f"test.{language}").read_text(encoding="utf-8")
        (tmp_path / f"test.{language}").write_text(text, encoding="utf-8")
    scores: Any = evaluate(runs.paths["translate"], tmp_path)
    assert (scores.split, scores.scores["n"]) == ("test", 10)
    (tmp_path / "test.txt").write_text("the dog sees the ball.\n" * 5)
    assert evaluate(runs.paths["language"], tmp_path).split == "test"
    pairs = "en,de\na man sees a guitar.,ein Mann sieht eine Gitarre.\n"
    (tmp_path / "few.csv").write_text(pairs)
    assert evaluate(runs.paths["translate"], tmp_path / "few.csv").split == "all"


def test_a_stale_tokenizer_is_not_used(runs: Runs, tmp_path: Path) -> None:
    """A run that was killed before its first step leaves one behind."""
    words = ["steps=2", "context=8", "model.width=32", "batch_size=4"]
    story = runs.texts / "story.txt"
    kill = partial(forked.kill_in, "vitrail.training.task", "run_loop", 1)
    call = ["train", str(story), "--recipe", "language", "--run", str(tmp_path / "run"), *words]
    assert runs.forge.run(command, call, kill, log=tmp_path / "log") == KILLED
    assert (tmp_path / "run" / "tokenizer.json").is_file()
    train(story, recipe="language", settings=[*words, "tokenizer=words"], run=tmp_path / "run", report=False)
    assert load_text_model(tmp_path / "run").tokenizer.encode("the dog sees").shape == (3,)


def test_the_size_follows_from_the_length_and_the_users_fields(runs: Runs, tmp_path: Path) -> None:
    options: dict[str, Any] = {"recipe": "language", "report": False}
    words = ["context=8", "batch_size=64", "precision=float32"]
    train(runs.texts / "story.txt", settings=[*words, "steps=1", "model.width=128"], run=tmp_path / "a", **options)
    spec = load_text_model(tmp_path / "a").model.spec
    assert (spec.depth, spec.width, spec.hidden, spec.heads) == (4, 128, 512, 2)
    train(
        runs.texts / "story.txt",
        settings=[*words, "epochs=1.5", "model.position=learned"],
        run=tmp_path / "b",
        **options,
    )
    spec = load_text_model(tmp_path / "b").model.spec
    assert (spec.depth, spec.width, spec.position) == (6, 192, "learned")


def test_a_dry_run_of_many_pairs(tmp_path: Path) -> None:
    pairs = "".join(f"{first},{second}\n" for first, second in sentences(900))
    (tmp_path / "pairs.csv").write_text("en,de\n" + pairs, encoding="utf-8")
    words = ["vocab=300", "context=48", "model.width=32", "model.heads=2", "batch_size=8", "val_share=0.7"]
    result = train(tmp_path / "pairs.csv", recipe="translate", settings=words, dry_run=True)
    assert "sentence pairs to train on" in result.story[0]


BAD: dict[str, tuple[Any, type[VitrailError], str]] = {
    "empty prompt": (lambda runs: generate(runs["language"], ""), DataError, "no text to continue"),
    "unknown letter": (lambda runs: generate(runs["language"], "a mañ"), DataError, "Got 'ñ'"),
    "nothing to translate": (lambda runs: generate(runs["translate"], " "), DataError, "nothing to translate"),
    "too long": (lambda runs: generate(runs["translate"], "a man " * 60), DataError, "longer than the model's context"),
    "other language": (lambda runs: generate(runs["translate"], "a man", to="fr"), DataError, "not translate to fr"),
    "unknown words": (
        lambda runs: evaluate(runs["masked_language"], write_unknown(runs["masked_language"].parent)),
        DataError,
        "no known word to mask",
    ),
    "no gap": (lambda runs: predict_texts(runs["masked_language"], ["a man"]), DataError, "no gap to fill"),
    "no such token": (lambda runs: predict_texts(runs["masked_language"], ["a [GAP]"]), DataError, "no special token"),
    "long gap": (
        lambda runs: predict_texts(runs["masked_language"], ["[MASK] man" * 30]),
        DataError,
        "longer than the model's context",
    ),
    "another kind": (
        lambda runs: predict_texts(runs["language"], ["[MASK]"]),
        RunError,
        r"run of another kind(.|\n)*vitrail generate",
    ),
    "a masked model": (lambda runs: generate(runs["masked_language"], "a man"), RunError, "vitrail predict"),
    "not convertible": (lambda runs: convert(runs["translate"], to="hf", out="x"), RunError, "run of another kind"),
    "another format": (lambda runs: convert(runs["language"], to="timm", out="x"), WeightsError, "Try --to hf"),
}


def write_unknown(folder: Path) -> Path:
    (folder / "unknown.txt").write_text("xyzzy plugh\nplugh\n")
    return folder / "unknown.txt"


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, runs: Runs) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call(runs.paths)


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (("model.heads=5",), {}, "heads must divide width"),
        (("model.vocab=9",), {}, "follows from the recipe"),
        ((), {"model": "vit_mu_patch4_8"}, "models of text have no names"),
        ((), {"weights": "x"}, "trained from scratch"),
        ((), {"target": "x"}, "--target names a number"),
        ((), {"folds": 3}, "folds are for classification"),
        (("source=en", "target=en"), {"recipe": "translate"}, "different languages"),
    ],
)
def test_bad_requests(
    words: tuple[str, ...], options: dict[str, Any], message: str, runs: Runs, tmp_path: Path
) -> None:
    with pytest.raises(VitrailError, match=message):
        train(
            runs.texts / "story.txt",
            settings=["steps=1", *words],
            run=tmp_path / "run",
            **{"recipe": "language", **options},
        )
    assert not (tmp_path / "run").exists()


def test_changed_text_is_another_run(runs: Runs, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one two three. " * 20)
    words = ["steps=2", "context=8", "model.width=32", "model.heads=2", "batch_size=4"]
    train(text, recipe="language", settings=words, run=tmp_path / "run", report=False)
    text.write_text("one two four. " * 20)
    with pytest.raises(RunError, match="holds another run"):
        train(text, recipe="language", settings=words, run=tmp_path / "run", report=False)


def test_a_tokenizer_that_does_not_fit_is_refused(runs: Runs, tmp_path: Path) -> None:
    copy = copy_unsummed(runs.paths["language"], tmp_path / "run")
    other = learn_tokenizer("subwords", ["other text"], vocab=400)
    (copy / "tokenizer.json").write_text(other.to_json(), encoding="utf-8")
    with pytest.raises(RunError, match="does not fit the run's model"):
        load_text_model(copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(RunError, match="is not a tokenizer"):
        load_text_model(copy)
