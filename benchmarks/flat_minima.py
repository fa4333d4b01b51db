"""SAM: the largest eigenvalue of the Hessian and the accuracy with and without it, at equal steps and at equal time.

    python benchmarks/flat_minima.py cifar10.npz --work DIR --minutes 10 --out benchmarks/flat-minima.json

10,000 images of CIFAR-10. `plain` and `sam` have the same minutes, so SAM takes about half as many steps; `plain, steps
of sam` stops after as many steps as SAM took. The sharpness is that of 256 training images.
"""

from __future__ import annotations

from typing import Any

from side_by_side import (
    COMMON,
    Results,
    check_unfinished_seeds,
    classifier_row,
    mean_and_interval,
    new_parser,
    run_all,
    write_part,
)

MODEL, RHO, NUM_IMAGES = "vit_nano_conv4_32", 0.05, 10_000
NAMES = ("plain", "sam", "plain, steps of sam")


def read(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of a run and of its sharpness."""
    return {**classifier_row(documents[:1]), "eigenvalue": documents[1]["eigenvalue"]}


def main() -> None:
    """Run what is missing and write one JSON document."""
    args = new_parser(minutes=10.0).parse_args()
    work, seeds = args.work, range(args.seeds)
    results = Results(args.out, {"minutes": args.minutes, "rho": RHO, "model": MODEL, "images": NUM_IMAGES})
    check_unfinished_seeds([f"{name}-{seed}" for name in NAMES for seed in seeds], results, restart=args.restart)
    data = {seed: str(write_part(args.data, work, NUM_IMAGES, seed)[0]) for seed in seeds}

    def job(name: str, seed: int, *more: str) -> list[list[str]]:
        run = work / f"{name}-{seed}" / "model"
        train = ["train", data[seed], "--recipe", "scratch", "--model", MODEL, "--seed", str(seed), "--run", str(run)]
        sharpness = ["bench", "sharpness", str(run), data[seed], "--out", str(run / "sharpness.png")]
        return [[*train, *COMMON, *more], [*sharpness, *COMMON]]

    limit = ("--minutes", str(args.minutes))
    timed = {f"plain-{seed}": job("plain", seed, *limit) for seed in seeds}
    timed |= {f"sam-{seed}": job("sam", seed, *limit, f"sam={RHO}") for seed in seeds}
    rows = run_all(timed, results, read=read)
    rows |= run_all(
        {
            f"{NAMES[2]}-{seed}": job(NAMES[2], seed, f"steps={rows[f'sam-{seed}']['steps'][0]}", "compile=off")
            for seed in seeds
        },
        results,
        read=read,
    )
    results.write(
        {
            name: {
                key: mean_and_interval([rows[f"{name}-{seed}"][key] for seed in seeds])
                for key in ("accuracy", "eigenvalue")
            }
            for name in NAMES
        }
    )


if __name__ == "__main__":
    main()
