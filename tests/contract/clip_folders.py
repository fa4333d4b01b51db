"""Small data sets of clips: tones and noise as class folders, zips and tables, and videos that brighten or darken."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.contract.small_clips import ramp_video, wav

CLASSES = ("low", "high")
RATE = 4000
SOUND_MODEL = ("--model", "vit_mu_conv8_mel40x96")
FAST = ("batch_size=4", "precision=float32", "workers=0", "eval_every=2", "save_every=1")


def tone(number: int, label: str, *, rate: int = RATE, seconds: float = 0.5) -> np.ndarray[Any, Any]:
    """A tone, low or high, with noise that no other number has."""
    time = np.arange(round(rate * seconds)) / rate
    pitch = (300.0 if label == "low" else 900.0) + number
    return 0.3 * np.sin(2 * np.pi * pitch * time) + np.random.default_rng(number).uniform(-0.05, 0.05, len(time))


def write_sounds(folder: Path, num: int = 8, *, format: str = "WAV", **options: Any) -> Path:
    """Class folders of sounds."""
    for label in CLASSES:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(num):
            content = wav(tone(number, label, **options), options.get("rate", RATE), format=format)
            (folder / label / f"{number}.{format.lower()}").write_bytes(content)
    return folder


def write_splits(folder: Path, num: int = 8) -> Path:
    """The same, below train, val and test."""
    for place, split in enumerate(("train", "val", "test")):
        for label in CLASSES:
            (folder / split / label).mkdir(parents=True, exist_ok=True)
            for number in range(num if split == "train" else 4):
                content = wav(tone(100 * place + number, label), RATE)
                (folder / split / label / f"{number}.wav").write_bytes(content)
    return folder


def write_zip(file: Path, folder: Path) -> Path:
    """A zip of a folder."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*.*")):
            archive.write(path, path.relative_to(folder))
    return file


def write_table(file: Path, folder: Path, column: str = "path") -> Path:
    """A table of the clips in class folders."""
    rows = [f"{path.relative_to(file.parent)},{path.parent.name}" for path in sorted(folder.rglob("*.*"))]
    file.write_text("\n".join([f"{column},label", *rows, ""]))
    return file


def write_videos(folder: Path, num: int = 4) -> Path:
    """Class folders of videos of a second; those called `high` have a brighter beginning."""
    for label in CLASSES:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(num):
            frames = 8 + number + (4 if label == "high" else 0)  # no two are the same
            (folder / label / f"{number}.mp4").write_bytes(ramp_video(num_frames=frames, size=(16, 16), rate=8))
    return folder


def write_image(path: Path, number: int, label: str, side: int = 8) -> Path:
    """A noisy image, dark or bright."""
    pixels = np.random.default_rng(number).integers(0, 100, (side, side, 3)) + (0 if label == "low" else 150)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path
