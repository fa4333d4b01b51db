"""How OpenMP threads wait for each other: training alone on the machine, and beside another training process.

    python benchmarks/waiting.py > benchmarks/waiting.json

The evidence for `GOMP_SPINCOUNT=1000`, which the command line sets. Each contender trains a small model for some steps,
alone and then twice at the same time, in turns; the slower process counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from vitrail.benchmark.compare import hardware

WAITS = {
    "the library's default": {},
    "a short spin (Vitrail)": {"GOMP_SPINCOUNT": "1000"},
    "none (OMP_WAIT_POLICY=passive)": {"OMP_WAIT_POLICY": "passive"},
}
STEPS, BATCH_SIZE, ROUNDS, LIMIT = 30, 64, 2, 120
CHILD = f"""
import time, torch
from vitrail import create_model
model = create_model("vit_nano_conv4_32", num_classes=10)
images, labels = torch.randn({BATCH_SIZE}, 3, 32, 32), torch.arange({BATCH_SIZE}) % 10
for step in range({STEPS} + 1):
    if step == 1:
        started = time.perf_counter()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
print(time.perf_counter() - started)
"""


def seconds(wait: dict[str, str], num: int) -> float | None:
    """The seconds of the slowest of `num` concurrent processes; None if they exceed the limit."""
    removed = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"}
    environment = {key: value for key, value in os.environ.items() if key not in removed} | wait
    command = [sys.executable, "-c", CHILD]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(num)]  # noqa: S603
    try:
        return max(round(float(child.communicate(timeout=LIMIT)[0]), 2) for child in children)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for child in children:
            child.kill()


def main() -> None:
    """Run all contenders in turns and print one JSON document."""
    rows = []
    for number in range(ROUNDS):
        for name, wait in WAITS.items():
            row = {"waiting": name, "round": number, "alone": seconds(wait, 1), "two_at_once": seconds(wait, 2)}
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    print(json.dumps({"steps": STEPS, "limit": LIMIT, "hardware": hardware(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
