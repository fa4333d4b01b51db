"""Each bad weight file is refused with one error, little memory, no code run and no model loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.bad_checkpoints import BAD

MAX_GROWTH = 64 * 2**20


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """All files are loaded in one fresh process, so that its memory can be measured."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from /proc, which exists only on Linux")
    folder = tmp_path_factory.mktemp("bad")
    script = Path(__file__).with_name("bad_checkpoints.py")
    root = Path(__file__).parent.parent.parent
    run = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(folder)], capture_output=True, text=True, check=False, cwd=root
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(name: str, outcomes: dict[str, dict]) -> None:
    outcome = outcomes[name]
    assert re.match(r"\w+Error: ", outcome["error"])
    assert re.search(BAD[name][1], outcome["error"]), outcome["error"]
    assert len(outcome["error"]) < 600
    assert not outcome["loaded"]
    assert not outcome["ran"]
    assert outcome["growth"] < MAX_GROWTH


def test_the_evil_pickle_runs_code(tmp_path: Path) -> None:
    """Proof that the tests above can fail: plain unpickling does run the code."""
    import pickle

    path = BAD["code_in_legacy_pickle"][0](tmp_path)
    pickle.loads(path.read_bytes())
    assert (tmp_path / "ran").exists()
