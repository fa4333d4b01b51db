"""Small tables of several modalities, and the command that aligns them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.contract.clip_folders import CLASSES, RATE, tone, write_image
from tests.contract.small_clips import ramp_video, wav

FAST = ("batch_size=8", "precision=float32", "workers=0", "eval_every=2", "save_every=1", "context=8")
WORDS = {"low": "a low tone", "high": "a high tone"}
Row = dict[str, Any]


def write_rows(file: Path, rows: Sequence[Row]) -> Path:
    """A table with the columns of its first row."""
    with file.open("w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return file


def make_rows(folder: Path, num: int = 20, *, seconds: float = 0.25) -> list[Row]:
    """Images, sounds and texts of two classes, with splits; their files are written to the folder."""
    rows = []
    (folder / "sounds").mkdir(parents=True, exist_ok=True)
    for number in range(num):
        label = CLASSES[number % 2]
        write_image(folder / "images" / f"{number}.png", number, label)
        (folder / "sounds" / f"{number}.wav").write_bytes(wav(tone(number, label, seconds=seconds), RATE))
        split = "test" if number >= num - 4 else "val" if number >= num - 8 else "train"
        text = f"{WORDS[label]} {number % 4}"
        row = {"image": f"images/{number}.png", "sound": f"sounds/{number}.wav", "text": text}
        rows.append({**row, "label": label, "split": split})
    return rows


def write_aligned(folder: Path) -> Path:
    """A table of images, sounds and texts with labels and splits."""
    return write_rows(folder / "data.csv", make_rows(folder))


def only(rows: Sequence[Row], *columns: str) -> list[Row]:
    """The same rows with these columns."""
    return [{name: row[name] for name in columns} for row in rows]


def write_talking_videos(folder: Path, num: int = 8) -> Path:
    """A table of videos, whose own tracks are the sounds."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(num):
        sound = tone(number, CLASSES[number % 2], rate=16_000, seconds=1.0).astype(np.float32)
        video = ramp_video(num_frames=8, size=(16, 16), rate=8, format="avi", sound=sound)
        (folder / f"{number}.avi").write_bytes(video)
        rows.append({"video": f"{number}.avi", "sound": f"{number}.avi"})
    return write_rows(folder / "videos.csv", rows)


def words_of(data: Path, run: Path, *more: str, steps: int = 3) -> list[str]:
    """The command line of a small run."""
    options = ("--recipe", "align", "--model", "vatt_mu", "--run", str(run))
    return ["train", str(data), *options, f"steps={steps}", *FAST, *more]
