"""Digits of 8 x 8 pixels as pixels, patches, rows and columns: the same transformer on other tokens, at equal time.

    python benchmarks/token_kinds.py digits --work DIR --minutes 5 --out benchmarks/token-kinds-5.json

Every run has the same processor minutes on one core (side_by_side.py), everything included. Digits are not mirrored.
"""

from __future__ import annotations

from side_by_side import COMMON, Results, mean_and_interval, new_parser, run_all

KINDS = {
    "pixels": "vit_nano_patch1_gap_8",
    "patches": "vit_nano_patch2_gap_8",
    "rows": "vit_nano_patch1x8_gap_8",
    "columns": "vit_nano_patch8x1_gap_8",
}
SETTINGS = ("small_until=0", "augment.flip_rate=0", "batch_size=32")


def main() -> None:
    """Run what is missing and write one JSON document."""
    args = new_parser(minutes=5.0).parse_args()
    results = Results(args.out, {"data": args.data.name, "minutes": args.minutes, "cores": 1, "models": KINDS})
    jobs = {}
    for seed in range(args.seeds):
        for kind, model in KINDS.items():
            words = ["train", str(args.data), "--recipe", "scratch", "--minutes", str(args.minutes), "--model", model]
            words += ["--seed", str(seed), "--run", str(args.work / f"{kind}-{seed}")]
            jobs[f"{kind}-{seed}"] = [[*words, *COMMON, *SETTINGS]]
    run_all(jobs, results)
    groups: dict[str, list[float]] = {}
    for name, row in results.rows.items():
        groups.setdefault(name.rpartition("-")[0], []).append(row["accuracy"])
    results.write({name: mean_and_interval(values) for name, values in groups.items()})


if __name__ == "__main__":
    main()
