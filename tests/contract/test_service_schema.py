"""The service keeps to its own OpenAPI document: schemathesis makes requests of it, good and bad ones.

By its command line, for its plugin for pytest does not know pytest 9.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.contract.serving import Served, write_weights

# 413 is a refusal as well: more pictures than a form may hold are too much content.
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]
SETTINGS = f"""
seed = 1
[checks.negative_data_rejection]
expected-statuses = {REFUSALS}
"""


def test_it_is_as_it_says(tmp_path: Path) -> None:
    served = Served(tmp_path, weights=write_weights(tmp_path))
    try:
        assert served.post(b"", "/v1/explain").status == 400
        (tmp_path / "settings.toml").write_text(SETTINGS)
        words = ["--config-file", str(tmp_path / "settings.toml"), "run", f"{served.told['address']}/openapi.json"]
        words += ["--checks", "all", "--max-examples", "25", "--no-color"]
        done = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", *words],
            env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.contract.schema_hooks", "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Tested: 6" in done.stdout
    finally:
        code = served.stop()
    assert code == 0
    assert {line["event"] for line in served.lines()} == {"ready", "request", "draining", "stopped"}
