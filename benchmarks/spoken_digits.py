"""Spoken digits as raw samples, as patches of the waveform and as patches of a spectrogram.

    python benchmarks/spoken_digits.py fsdd_8k_int16.npz --work DIR --minutes 4 --out benchmarks/spoken-digits-4.json

The Free Spoken Digit Dataset: 3,000 clips of six speakers. `mixed` tests on a fifth of all clips, drawn once;
`held_out` tests on one speaker, whom training never hears. Every run has the same processor minutes on one core
(side_by_side.py), everything included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import COMMON, Results, mean_and_interval, new_parser, run_all

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEST_SHARE = 0.2
FORMS = {
    "spectrogram": (),
    "patches": ("--model", "vit_nano_patch80_gap_sound8000"),
    "samples": ("--model", "perceiver_nano_sound8000", "batch_size=16"),
}
SPLITS = ("mixed", "held_out")


def write_clips(source: Path, folder: Path, speaker: str) -> None:
    """Write the clips as class folders of WAV files, once for each way to split them."""
    import soundfile

    if (folder / "held_out").is_dir():
        return
    stored = dict(np.load(source))
    draws = np.random.default_rng(0).random(len(stored["label"]))
    for index, label in enumerate(stored["label"]):
        clip = stored["audio"][stored["offsets"][index] : stored["offsets"][index + 1]]
        who = str(stored["speaker"][index])
        for name, is_test in (("mixed", draws[index] < TEST_SHARE), ("held_out", who == speaker)):
            file = (
                folder / name / ("test" if is_test else "train") / WORDS[label] / f"{who}-{stored['index'][index]}.wav"
            )
            file.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(file, clip, int(stored["sample_rate"]))


def read(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """What a run says of its classifier."""
    return {key: documents[0].get(key) for key in ("test", "val", "steps", "story")}


def main() -> None:
    """Run what is missing and write one JSON document."""
    parser = new_parser(minutes=4.0)
    parser.add_argument("--speaker", default="theo", help="the one that training does not hear")
    parser.add_argument("--forms", default=",".join(FORMS))
    args = parser.parse_args()
    write_clips(args.data, args.work / "clips", args.speaker)
    facts = {"data": args.data.name, "minutes": args.minutes, "cores": 1, "held_out_speaker": args.speaker}
    results = Results(args.out, facts)
    jobs = {}
    for seed in range(args.seeds):
        for form in args.forms.split(","):
            for split in SPLITS:
                words = ["train", str(args.work / "clips" / split), "--recipe", "scratch", "--seed", str(seed)]
                words += ["--minutes", str(args.minutes), "--run", str(args.work / f"{form}-{split}-{seed}")]
                jobs[f"{form}-{split}-{seed}"] = [[*words, *COMMON, *FORMS[form]]]
    run_all(jobs, results, read=read)
    groups: dict[str, list[float]] = {}
    for name, row in results.rows.items():
        groups.setdefault(name.rpartition("-")[0], []).append(row["test"]["top1"])
    results.write({name: mean_and_interval(values) for name, values in groups.items()})


if __name__ == "__main__":
    main()
