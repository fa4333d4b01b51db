"""Tiny runs on text, with what must not reach a page as it is: markup and control characters."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.contract.small_texts import TINY
from vitrail import train
from vitrail.verbs.train import Training

MARKUP = "<script>alert(1)</script>"
ODD = "bell\a tab\t turned\u202e caf\N{LATIN SMALL LETTER E WITH ACUTE} end"
WORDS = ("a", "the", "man", "woman", "dog", "cat", "walks", "sleeps", "runs", "in", "near", "red", "house", "street")
FAST = ("steps=3", "batch_size=8", "precision=float32", "compile=off")
SETTINGS = {
    "language": ("context=16", "tokenizer=subwords", "vocab=280"),
    "masked_language": ("context=32",),
    "translate": ("context=128", "source=en", "target=de,fr", "vocab=280", "beam=1"),
}


def sentences(num: int, seed: int) -> list[str]:
    """Random words in a row."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 6)) + "." for _ in range(num)]


def write_texts(folder: Path) -> Path:
    """A folder of plain text and one of aligned sentences; both have a validation split that is awkward to show."""
    (folder / "text").mkdir(parents=True)
    (folder / "pairs").mkdir()
    val = [f"{MARKUP} {ODD}", *sentences(20, 1)]
    (folder / "text" / "train.txt").write_text("\n".join([*sentences(60, 0), MARKUP, ODD]), encoding="utf-8")
    (folder / "text" / "val.txt").write_text("\n".join(val), encoding="utf-8")
    for language in ("en", "de", "fr"):
        (folder / "pairs" / f"train.{language}").write_text("\n".join(sentences(40, 2)), encoding="utf-8")
        (folder / "pairs" / f"val.{language}").write_text("\n".join([val[0], *sentences(5, 3)]), encoding="utf-8")
    return folder


def data_of(folder: Path, recipe: str) -> Path:
    """What a recipe learns from."""
    return folder / ("pairs" if recipe == "translate" else "text")


def learn_text(folder: Path, recipe: str) -> Training:
    """Train a run, or return the result of the finished one."""
    run = folder / f"run <b> {recipe}"
    return train(data_of(folder, recipe), recipe=recipe, run=run, settings=(*FAST, *TINY, *SETTINGS[recipe]))
