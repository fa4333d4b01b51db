"""Digits as images, as speech and as words in one space: recall at 1 in all six directions.

    python benchmarks/vatt_digits.py DATA --work DIR --minutes 6 --out benchmarks/vatt-digits-6.json

`DATA` is a folder with mnist/mnist_10k_2k.npz and audio/fsdd_8k_int16.npz. Training pairs each of 5,000 images with a
random clip of the same digit by one of five speakers, and with its word; the test pairs 500 other images with clips of
the sixth speaker. Every run has the same processor minutes on one core (side_by_side.py). Beside separate towers with
two common spaces: one transformer for all, one common space, sound compared with words too, and DropToken at 25, 50
and 75 %.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import COMMON, Results, mean_and_interval, new_parser, run_all

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
NUM = {"train": 5000, "test": 500}
METHODS = {
    "separate": (),
    "shared": ("model.shared=true",),
    "flat": ("model.hierarchical=false",),
    "all_pairs": ("model.all_pairs=true",),
    "drop_25": ("model.drop_token_rate=0.25",),
    "drop_50": ("model.drop_token_rate=0.5",),
    "drop_75": ("model.drop_token_rate=0.75",),
}


def write_triples(source: Path, folder: Path, speaker: str) -> Path:
    """Write images, sounds and the table that pairs them."""
    import soundfile
    from PIL import Image

    table = folder / "digits.csv"
    if table.is_file():
        return table
    (folder / "sounds").mkdir(parents=True, exist_ok=True)
    (folder / "images").mkdir(exist_ok=True)
    spoken, written = (dict(np.load(source / name)) for name in ("audio/fsdd_8k_int16.npz", "mnist/mnist_10k_2k.npz"))
    clips: dict[str, list[list[str]]] = {split: [[] for _ in WORDS] for split in NUM}
    for index, label in enumerate(spoken["label"]):
        who = str(spoken["speaker"][index])
        name = f"sounds/{WORDS[label]}-{who}-{spoken['index'][index]}.wav"
        samples = spoken["audio"][spoken["offsets"][index] : spoken["offsets"][index + 1]]
        soundfile.write(folder / name, samples, int(spoken["sample_rate"]))
        clips["test" if who == speaker else "train"][label].append(name)
    rng, rows = np.random.default_rng(0), []
    for split, num in NUM.items():
        for index in range(num):
            label, name = int(written[f"y_{split}"].ravel()[index]), f"images/{split}-{index}.png"
            Image.fromarray(written[f"x_{split}"][index].reshape(28, 28)).save(folder / name)
            rows.append((name, str(rng.choice(clips[split][label])), WORDS[label], WORDS[label], split))
    with (folder / "partial").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "sound", "text", "label", "split"])
        writer.writerows(rows)
    return (folder / "partial").rename(table)


def read(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """What a run says of its directions."""
    keys = ("test", "val", "steps", "samples_per_second", "seconds_by_phase")
    return {key: documents[0].get(key) for key in keys}


def main() -> None:
    """Run what is missing and write one JSON document."""
    parser = new_parser(minutes=6.0)
    parser.add_argument("--speaker", default="theo", help="the one that training does not hear")
    parser.add_argument("--methods", default=",".join(METHODS))
    args = parser.parse_args()
    table = write_triples(args.data, args.work / "triples", args.speaker)
    results = Results(args.out, {"minutes": args.minutes, "cores": 1, "held_out_speaker": args.speaker})
    jobs = {}
    for seed in range(args.seeds):
        for method in args.methods.split(","):
            words = ["train", str(table), "--recipe", "align", "--minutes", str(args.minutes), "--seed", str(seed)]
            jobs[f"{method}-{seed}"] = [
                [*words, "--run", str(args.work / f"{method}-{seed}"), *COMMON, *METHODS[method]]
            ]
    run_all(jobs, results, read=read)
    groups: dict[str, list[float]] = {}
    for name, row in results.rows.items():
        groups.setdefault(name.rpartition("-")[0], []).append(row["test"]["recall"])
    results.write({name: mean_and_interval(values) for name, values in groups.items()})


if __name__ == "__main__":
    main()
