"""Whether two versions of the code train the same bits: weights and metrics of 50 seeded steps, by SHA-256.

    git worktree add ../before COMMIT
    python benchmarks/same_bits.py --before ../before --weights deit_tiny.safetensors --data pets.zip > same-bits.json

Each recipe runs in its own process with one thread, once with each version; then a run of the old version is stopped
halfway, and the new one finishes it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
COMMON = ("precision=float32", "cache_gb=0.0", "eval_every=25", "save_every=10")
STOPPED_AFTER = "step-000000020"
PATIENCE = 600.0


def recipes(data: str, weights: str) -> dict[str, list[str]]:
    """The command of each recipe, without its run directory."""
    small = ["model.image_size=64"]
    tuned = ["--model", "deit_tiny_patch16_224", "--weights", weights]
    return {
        "scratch": ["digits", "--recipe", "scratch", "--model", "vit_nano_conv2_8", "steps=50", *COMMON],
        "scratch, mixup and parts": [
            *["digits", "--recipe", "scratch", "--model", "vit_mu_patch4_8", "steps=50", "augment.mixup=0.4"],
            *["accumulate=3", "class_weights=true", "ema=0.9", *COMMON],
        ],
        "finetune": [data, "--recipe", "finetune", *tuned, *small, "steps=50", "batch_size=16", *COMMON],
        "finetune, LoRA": [
            data,
            "--recipe",
            "finetune",
            *tuned,
            *small,
            "steps=50",
            "batch_size=16",
            "lora=4",
            *COMMON,
        ],
        "probe": [data, "--recipe", "probe", *tuned, *small, "shots=5", "cache_gb=0.0"],
        "auto": [data, "--recipe", "auto", *tuned, *small, "steps=50", "batch_size=16", *COMMON],
    }


def start(code: Path, words: list[str], run: Path) -> subprocess.Popen[bytes]:
    """Start `vitrail train` of one version."""
    command = [sys.executable, "-m", "vitrail", "train", *words, "--run", str(run), "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, cwd=run.parent, stdout=subprocess.DEVNULL)  # noqa: S603


def digests(run: Path) -> dict[str, str]:
    """The SHA-256 sums of the files that must not change."""
    names = ("model.safetensors", "metrics.jsonl", "golden.safetensors")
    return {
        name: hashlib.sha256((run / name).read_bytes()).hexdigest()[:16] for name in names if (run / name).is_file()
    }


def train(code: Path, words: list[str], run: Path) -> dict[str, str]:
    """Train to the end."""
    process = start(code, words, run)
    if process.wait(PATIENCE):
        raise SystemExit(f"{words} failed with {code}")
    return digests(run)


def stop_halfway(code: Path, words: list[str], run: Path) -> None:
    """Train, and kill the process after some steps."""
    process = start(code, words, run)
    deadline = time.monotonic() + PATIENCE
    while not (run / "checkpoints" / STOPPED_AFTER).is_dir() and process.poll() is None:
        if time.monotonic() > deadline:
            raise SystemExit("no checkpoint")
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def main() -> None:
    """Compare and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, words) in enumerate(recipes(args.data, args.weights).items()):
            before = train(args.before.resolve(), words, Path(folder) / f"{number}-before")
            after = train(HERE, words, Path(folder) / f"{number}-after")
            row = {"name": name, "same": before == after, "before": before, "after": after}
            if (Path(folder) / f"{number}-before" / "checkpoints").is_dir():
                half = Path(folder) / f"{number}-half"
                stop_halfway(args.before.resolve(), words, half)
                row["finished_by_the_new"] = train(HERE, words, half) == before
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    print(json.dumps({"steps": 50, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
