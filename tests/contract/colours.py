"""Pictures whose class is a colour, and small runs on them, which take seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail import __main__ as command_line
from vitrail.verbs.train import Training, train

TINY = "vit_mu_patch4_gap_16"
COLOURS = {"blue": (40, 60, 200), "green": (40, 200, 60), "red": (200, 40, 60)}
FAST = ("steps=60", "batch_size=12", "precision=float32", "cache_gb=0.0", "eval_every=20", "ema=0.0")


def pixels_of(name: str, number: int, side: int = 20) -> np.ndarray:
    """The picture of that number, which no other is like."""
    random = np.random.default_rng([number, *name.encode()])
    return np.clip(np.array(COLOURS[name]) + random.normal(0, 25, (side, side, 3)), 0, 255).astype(np.uint8)


def write_colours(folder: Path, splits: dict[str, int], *, swapped: int = 0) -> list[str]:
    """So many pictures of each class a split; the first few of each class in train lie in the folder of the next."""
    names, wrong = list(COLOURS), []
    for split, num in splits.items():
        for place, name in enumerate(names):
            for number in range(num):
                astray = split == "train" and number < swapped
                label = names[(place + 1) % len(names)] if astray else name
                path = folder / split / label / f"{name}{number:03d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels_of(name, 1000 * len(split) + number)).save(path)
                wrong += [str(path.relative_to(folder))] if astray else []
    return wrong


def learn(folder: Path, run: Path, *words: str, **more: object) -> Training:
    """A run of a second or two that tells the colours apart."""
    told = {"model": TINY, "recipe": "scratch", "run": run, **more}
    chosen = [word for word in FAST if word.partition("=")[0] not in {each.partition("=")[0] for each in words}]
    return train(folder, settings=[*chosen, *words], **told)


def exit_code(words: list[str]) -> int:
    """Of a command line, run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["vitrail", *words])
        with pytest.raises(SystemExit) as stop:
            command_line.main()
    assert isinstance(stop.value.code, int)
    return stop.value.code
