"""What can be served: a run with its calibration and its card, and its export; and explaining, which starts late."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.contract.colours import learn, write_colours
from tests.contract.serving import Served
from tests.forge import Forge
from vitrail import export, load, predict


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that tells colours apart, and its export."""
    folder = tmp_path_factory.mktemp("models")
    write_colours(folder / "data", {"train": 30, "val": 20})
    learn(folder / "data", folder / "run")
    export(folder / "run", format="openvino", out=folder / "export", seconds=0.05)
    return folder


@pytest.fixture(scope="module", params=["run", "export", "export/model.xml"])
def told(home: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("served"), model=home / request.param)
    yield one
    one.stop()


def test_it_says_what_predict_says(home: Path, told: Served) -> None:
    folder = home / "data" / "val"
    for row in list(predict(home / "run", [folder]))[::9]:
        assert row.prediction is not None
        (said,) = told.post(Path(row.path).read_bytes()).document["predictions"]
        assert said["label"] == row.prediction.label
        assert said["unknown"] == row.prediction.unknown
        assert said["confidence"] == pytest.approx(row.prediction.confidence, abs=1e-4)


def test_its_facts(home: Path, told: Served) -> None:
    facts = told.ask("GET", "/v1/model").document
    run = load(home / "run")
    assert facts["labels"] == list(run.labels)
    assert facts["calibrated"]
    assert facts["knows_unknown"] == (run.calibration.limit is not None)
    if facts["engine"] == "PyTorch fp32":
        assert facts["explains"]
        assert "trained by `vitrail train`" in facts["card"]
    else:
        assert facts["engine"] == "OpenVINO fp32"
        assert facts["explains"] == []


def test_explaining_outlives_who_asked_first(home: Path, told: Served) -> None:
    content = next((home / "data" / "val" / "red").iterdir()).read_bytes()
    if not told.ask("GET", "/v1/model").document["explains"]:
        refused = told.ask("POST", "/v1/explain", content)
        assert (refused.status, refused.code) == (422, "cannot_explain")
        return
    line = socket.create_connection(told.place)
    line.sendall(b"POST /v1/explain HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
    time.sleep(0.2)
    line.close()  # while the second worker is being started
    until = time.monotonic() + 30
    while (answer := told.ask("POST", "/v1/explain", content)).status == 503 and time.monotonic() < until:
        time.sleep(0.2)
    assert answer.status == 200
    assert answer.document["label"] == "red"


@pytest.mark.parametrize("source", ["run", "export"])
def test_a_model_that_is_not_what_it_was_is_not_served(home: Path, tmp_path: Path, source: str, forge: Forge) -> None:
    copied = shutil.copytree(home / source, tmp_path / source)
    golden = load_file(copied / "golden.safetensors")
    save_file({**golden, "logits": golden["logits"].flip(0)}, copied / "golden.safetensors")
    told = forge.told("serve", str(copied), "--port", "0", "--quiet", cwd=tmp_path)
    assert told.returncode == 2
    assert "no longer says what it said when it was made" in told.stderr
