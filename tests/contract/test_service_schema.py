"""The service conforms to its OpenAPI document: schemathesis generates valid and invalid requests from it.

It runs from the command line, because its pytest plugin does not support pytest 9.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.contract.serving import ServerProcess, write_weights

# 413 is a rejection as well: for more images than a form may hold.
REJECTIONS = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]
SETTINGS = f"""
seed = 1
[checks.negative_data_rejection]
expected-statuses = {REJECTIONS}
"""


def test_the_service_conforms_to_its_schema(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, weights=write_weights(tmp_path))
    try:
        assert server.post(b"", "/v1/explain").status == 400
        (tmp_path / "settings.toml").write_text(SETTINGS)
        words = ["--config-file", str(tmp_path / "settings.toml"), "run", f"{server.startup['address']}/openapi.json"]
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
        code = server.stop()
    assert code == 0
    assert {line["event"] for line in server.log_lines()} == {"ready", "request", "draining", "stopped"}
