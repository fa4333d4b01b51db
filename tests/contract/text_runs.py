"""Runs on text that take seconds: a language model, a masked one and a translator, hardly trained."""

from __future__ import annotations

from pathlib import Path

import torch

from vitrail.verbs.train import train

WORDS = ["the", "sheep", "and", "goat", "are", "grazing", "while", "a", "man", "is", "not", "on", "with", "dogs", "."]
LINES = [" ".join(WORDS[(start + 3 * step) % len(WORDS)] for step in range(8)) for start in range(48)]
TINY = ("steps=3", "batch_size=8", "compile=off", "model.width=32", "model.depth=2", "model.heads=2", "model.hidden=64")
KINDS = ("language", "masked_language", "translation")
CONTEXT = 48
TEXTS = {
    "language": "the sheep and goat",
    "masked_language": "the [MASK] and goat are [MASK] .",
    "translation": "the sheep and goat",
}
"""A text for each kind."""


def make_run(kind: str, folder: Path) -> Path:
    """Train a model of two blocks with two heads each for three steps; its context has 48 tokens."""
    torch.set_num_threads(1)  # fixtures come before the one that sets it for each test
    run, settings = folder / kind, [*TINY, f"context={CONTEXT}"]
    if kind == "translation":
        data = folder / "pairs"
        data.mkdir()
        for split, lines in (("train", LINES[:32]), ("val", LINES[32:40]), ("test", LINES[40:])):
            (data / f"{split}.en").write_text("\n".join(lines))
            (data / f"{split}.de").write_text("\n".join(line.upper() for line in lines))
            (data / f"{split}.fr").write_text("\n".join(line.title() for line in lines))
        settings += ["source=en", "target=de,fr", "model.decoder_depth=2", "vocab=300"]
        train(data, recipe="translate", run=run, settings=settings)
        return run
    data = folder / f"{kind}.txt"
    data.write_text("\n".join(LINES))
    train(data, recipe=kind, run=run, settings=settings)
    return run
