"""What can be served: a run with its calibration and model card, and its export; and explanations on demand."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.conftest import copy_unsummed
from tests.contract.colours import learn, write_colours
from tests.contract.serving import ServerProcess
from tests.forge import Forge
from vitrail import export, load, predict


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that classifies colours, and its export."""
    folder = tmp_path_factory.mktemp("models")
    write_colours(folder / "data", {"train": 30, "val": 20})
    learn(folder / "data", folder / "run")
    export(folder / "run", format="openvino", out=folder / "export", seconds=0.05)
    return folder


@pytest.fixture(scope="module", params=["run", "export", "export/model.xml"])
def server(
    home: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("served"), model=home / request.param)
    yield server
    server.stop()


def test_predictions_equal_those_of_predict(home: Path, server: ServerProcess) -> None:
    folder = home / "data" / "val"
    for row in list(predict(home / "run", [folder]))[::9]:
        assert row.prediction is not None
        (prediction,) = server.post(Path(row.path).read_bytes()).document["predictions"]
        assert prediction["label"] == row.prediction.label
        assert prediction["unknown"] == row.prediction.unknown
        assert prediction["confidence"] == pytest.approx(row.prediction.confidence, abs=1e-4)


def test_model_facts(home: Path, server: ServerProcess) -> None:
    facts = server.request("GET", "/v1/model").document
    run = load(home / "run")
    assert facts["labels"] == list(run.labels)
    assert facts["calibrated"]
    assert facts["knows_unknown"] == (run.calibration.limit is not None)
    if facts["engine"] == "PyTorch fp32":
        assert facts["explains"]
        assert "trained with `vitrail train`" in facts["card"]
    else:
        assert facts["engine"] == "OpenVINO fp32"
        assert facts["explains"] == []


def test_the_explainer_survives_the_client_that_started_it(home: Path, server: ServerProcess) -> None:
    content = next((home / "data" / "val" / "red").iterdir()).read_bytes()
    if not server.request("GET", "/v1/model").document["explains"]:
        rejected = server.request("POST", "/v1/explain", content)
        assert (rejected.status, rejected.code) == (422, "cannot_explain")
        return
    connection = socket.create_connection(server.address)
    connection.sendall(
        b"POST /v1/explain HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(content) + content
    )
    time.sleep(0.2)
    connection.close()  # while the second worker is being started
    until = time.monotonic() + 30
    while (response := server.request("POST", "/v1/explain", content)).status == 503 and time.monotonic() < until:
        time.sleep(0.2)
    assert response.status == 200
    assert response.document["label"] == "red"


@pytest.mark.parametrize("source", ["run", "export"])
def test_a_model_that_fails_its_golden_check_is_not_served(
    home: Path, tmp_path: Path, source: str, forge: Forge
) -> None:
    copied = copy_unsummed(home / source, tmp_path / source)
    golden = load_file(copied / "golden.safetensors")
    save_file({**golden, "logits": golden["logits"].flip(0)}, copied / "golden.safetensors")
    result = forge.run_cli("serve", str(copied), "--port", "0", "--quiet", cwd=tmp_path)
    assert result.returncode == 2
    assert "no longer gives the outputs it was saved with" in result.stderr
