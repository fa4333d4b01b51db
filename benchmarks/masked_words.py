"""Masked words on the English sentences of Multi30k, beside two baselines on the same tokens.

    python benchmarks/masked_words.py captions --work DIR --minutes 10 --out benchmarks/masked-words.json

`captions` is a folder of train.txt, val.txt and test.txt. Each run has one core, and its minutes are processor minutes
(side_by_side.py). The baselines are the most frequent word, and the word that was seen most often between the same two
neighbours.
"""

from __future__ import annotations

from typing import Any

from side_by_side import COMMON, Results, mean_and_interval, new_parser, run_all


def read(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """What the run says of masked words."""
    return {key: documents[0].get(key) for key in ("val", "test", "steps", "samples_per_second")}


def main() -> None:
    """Run what is missing and write one JSON document."""
    args = new_parser(minutes=10.0).parse_args()
    results = Results(args.out, {"data": args.data.name, "minutes": args.minutes, "cores": 1})
    jobs = {}
    for seed in range(args.seeds):
        words = ["train", str(args.data), "--recipe", "masked_language", "--minutes", str(args.minutes)]
        jobs[str(seed)] = [[*words, "--seed", str(seed), "--run", str(args.work / f"masked-{seed}"), *COMMON]]
    rows = run_all(jobs, results, read=read)
    results.write(mean_and_interval([row["val"]["accuracy"] for row in rows.values()]))


if __name__ == "__main__":
    main()
