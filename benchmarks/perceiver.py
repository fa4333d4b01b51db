"""The Perceiver on digits: as pixels without patches, as raw sound, and as an image and a sound at once.

    python benchmarks/perceiver.py DATA --mnist MNIST --work DIR --seeds 1 --out benchmarks/perceiver.json

`DATA` is a folder with mnist/mnist_10k_2k.npz and audio/fsdd_8k_int16.npz, `MNIST` one with all of MNIST. Every run has
one core, and its minutes are processor minutes (side_by_side.py), everything included; of `both`, those of training
(perceiver_both.py). `mixed` tests on a fifth of all clips, `held_out` on one speaker, whom training never hears.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from side_by_side import COMMON, Results, new_parser, run_all
from spoken_digits import write_clips

SOUND = ("--model", "perceiver_nano_patch32_sound8000")
RUNS: dict[str, tuple[str, float, tuple[str, ...]]] = {
    "digits": ("digits", 3.0, ("--model", "perceiver_nano_8", "augment.flip_rate=0")),
    "mnist": ("mnist", 10.0, ("--model", "perceiver_nano_28", "augment.flip_rate=0")),
    "sound, mixed": ("mixed", 6.0, SOUND),
    "sound, held out": ("held_out", 6.0, SOUND),
}
"""For each row, its data, minutes and options."""
BOTH_MINUTES = 8.0


def read(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """What a run says of its classifier."""
    return {key: documents[0].get(key) for key in ("test", "val", "steps", "params", "tokens")}


def main() -> None:
    """Run what is missing and write one JSON document."""
    parser = new_parser(minutes=BOTH_MINUTES)
    parser.add_argument("--mnist", type=Path, required=True, help="the folder of MNIST's files")
    args = parser.parse_args()
    clips = args.work / "clips"
    write_clips(args.data / "audio" / "fsdd_8k_int16.npz", clips, "theo")
    places = {"mnist": args.mnist, "mixed": clips / "mixed", "held_out": clips / "held_out"}
    results = Results(args.out, {"minutes": {name: run[1] for name, run in RUNS.items()} | {"both": args.minutes}})
    jobs = {}
    for seed in range(args.seeds):
        for name, (data, minutes, options) in RUNS.items():
            words = ["train", str(places.get(data, data)), "--recipe", "scratch", "--minutes", str(minutes)]
            words += ["--seed", str(seed), "--run", str(args.work / f"{name}-{seed}")]
            jobs[f"{name}-{seed}"] = [[*words, *COMMON, *options]]
        script = str(Path(__file__).with_name("perceiver_both.py"))
        jobs[f"both-{seed}"] = [[script, str(args.data), "--minutes", str(args.minutes), "--seed", str(seed)]]
    run_all(jobs, results, read=read)
    results.write()


if __name__ == "__main__":
    main()
