"""Run by torchrun for test_waist.py: trains each job of the plan, and writes what it found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.contract import waist


def main() -> None:
    plan = Path(sys.argv[1])
    found = {name: waist.train(**job) for name, job in json.loads(plan.read_text()).items()}
    plan.with_suffix(f".{os.environ['RANK']}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
