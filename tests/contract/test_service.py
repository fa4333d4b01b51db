"""The service as clients see it: predictions, errors, tokens, headers, logs and metrics."""

from __future__ import annotations

import hmac
import io
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.serving import (
    MODEL,
    ServerProcess,
    form,
    jpeg,
    write_weights,
)
from tests.forge import Forge
from vitrail import predict
from vitrail.service import admission
from vitrail.service.admission import SECURITY_HEADERS, AdmissionMiddleware
from vitrail.service.limits import MAX_BODY_BYTES, MAX_IMAGES, ApiError
from vitrail.service.metrics import Metrics

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("served"), weights=weights)
    yield server
    code = server.stop()
    assert code == 0
    assert {line["event"] for line in server.log_lines()} == {"ready", "request", "draining", "stopped"}


@pytest.fixture(scope="module")
def guarded(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Listens on all addresses, with a token."""
    env = {"VITRAIL_TOKEN": TOKEN}
    server = ServerProcess(tmp_path_factory.mktemp("guarded"), "--host", "0.0.0.0", weights=weights, env=env)
    server.address = ("127.0.0.1", server.address[1])
    yield server
    assert server.stop() == 0


def test_an_image_as_the_raw_body(server: ServerProcess, weights: Path, tmp_path: Path) -> None:
    """The prediction equals that of `vitrail.predict`."""
    for seed in range(3):
        (tmp_path / f"{seed}.jpg").write_bytes(jpeg(seed, 40 + seed))
        response = server.post(jpeg(seed, 40 + seed))
        assert response.status == 200
        assert response.headers["content-type"] == "application/json"
        (row,) = predict(MODEL, [tmp_path / f"{seed}.jpg"], weights=weights)
        assert row.prediction is not None
        expected, got = row.prediction.document(), response.document["predictions"][0]
        assert got.pop("name") is None
        assert got["label"] == expected["label"]
        assert got["confidence"] == pytest.approx(expected["confidence"], abs=2e-6)
        assert [each["label"] for each in got["top"]] == [each["label"] for each in expected["top"]]
        assert got.keys() == expected.keys()
        assert response.document["model"] == {"name": MODEL, "version": server.startup["version"]}


@pytest.mark.parametrize("num", [1, 2, MAX_IMAGES])
def test_a_form_of_images(server: ServerProcess, num: int) -> None:
    files = [(f"{number}.jpg", jpeg(number)) for number in range(num)]
    response = server.post_form(files)
    assert response.status == 200
    rows = response.document["predictions"]
    assert [row["name"] for row in rows] == [name for name, _ in files]
    for row, (_, content) in zip(rows, files, strict=True):
        alone = server.post(content).document["predictions"][0]
        assert row["label"] == alone["label"]
        assert row["confidence"] == pytest.approx(alone["confidence"], abs=2e-6)


def test_too_many_images(server: ServerProcess) -> None:
    response = server.post_form([("a.jpg", jpeg())] * (MAX_IMAGES + 1))
    assert (response.status, response.code) == (413, "too_many_images")


def test_the_number_of_top_labels(server: ServerProcess) -> None:
    assert [len(server.post(jpeg(), f"/v1/predict?top={top}").document["predictions"][0]["top"]) for top in (1, 3)] == [
        1,
        3,
    ]
    assert len(server.post(jpeg(), "/v1/predict?top=1000").document["predictions"][0]["top"]) == 4
    for wrong in ("0", "1001", "five", "", "-1", "1e3", "9" * 5000):
        response = server.post(jpeg(), f"/v1/predict?top={wrong}")
        assert (response.status, response.code) == (422, "bad_parameter")


def test_one_bad_image_among_good_ones(server: ServerProcess) -> None:
    response = server.post_form([("a.jpg", jpeg()), ("b.jpg", jpeg()[:300]), ("c.jpg", b""), ("d.jpg", jpeg(1))])
    assert response.status == 200
    rows = response.document["predictions"]
    assert ["error" in row for row in rows] == [False, True, True, False]
    assert rows[1]["error"]["code"] == "bad_image"
    assert rows[1]["name"] == "b.jpg"


def test_only_bad_images(server: ServerProcess) -> None:
    for response in (server.post(b"not an image"), server.post_form([("a", b"no"), ("b", b"image")])):
        assert (response.status, response.code) == (422, "bad_image")
        assert response.document["error"]["hint"]
    assert server.post(b"").code == "bad_request"


def test_explanations(server: ServerProcess) -> None:
    numbers = server.post(jpeg(), "/v1/explain").document
    assert numbers["grid"] == [4, 4]
    assert [len(row) for row in numbers["map"]] == [4] * 4
    assert numbers["label"] == server.post(jpeg()).document["predictions"][0]["label"]
    other = server.post(jpeg(), "/v1/explain?class=class%201&method=rollout").document
    assert (other["label"], other["method"]) == ("class 1", "rollout")
    png = server.post(jpeg(), "/v1/explain?form=png")
    assert png.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(png.body)).size == (960, 960)
    view = server.post_form([("a.jpg", jpeg())], "/v1/explain?form=view")
    assert view.status == 200
    assert isinstance(view.document, dict)


@pytest.mark.parametrize(
    ("query", "content", "code"),
    [
        ("method=magic", jpeg(), "bad_parameter"),
        ("class=nobody", jpeg(), "bad_parameter"),
        ("form=svg", jpeg(), "bad_parameter"),
        ("", b"not an image", "bad_image"),
        ("", b"", "bad_request"),
    ],
)
def test_bad_explanation_requests(server: ServerProcess, query: str, content: bytes, code: str) -> None:
    response = server.post(content, f"/v1/explain?{query}")
    assert response.code == code
    assert 400 <= response.status < 500


def test_only_one_image_can_be_explained_at_a_time(server: ServerProcess) -> None:
    response = server.post_form([("a.jpg", jpeg())] * 2, "/v1/explain")
    assert (response.status, response.code) == (413, "too_many_images")


def test_model_facts_and_health(server: ServerProcess) -> None:
    facts = server.request("GET", "/v1/model").document
    assert facts["labels"] == [f"class {number}" for number in range(4)]
    assert facts["limits"]["bytes"] == MAX_BODY_BYTES
    assert facts["version"] == server.startup["version"]
    assert server.request("GET", "/livez").document == {"status": "alive"}
    assert server.request("GET", "/readyz").document == {"status": "ready"}
    assert server.request("GET", "/openapi.json").document["paths"].keys() >= {"/v1/predict", "/v1/explain"}


def test_metrics_are_counted(server: ServerProcess) -> None:
    before = server.metric("vitrail_requests_total", path="/v1/predict", status="200")
    images = server.metric("vitrail_batch_images_sum")
    server.post(jpeg())
    server.post_form([("a.jpg", jpeg())] * 3)
    assert server.metric("vitrail_requests_total", path="/v1/predict", status="200") == before + 2
    assert server.metric("vitrail_batch_images_sum") == images + 4
    server.request("GET", "/anything?at=all")
    families = list(text_string_to_metric_families(server.request("GET", "/metrics").body.decode()))
    paths = {sample.labels["path"] for each in families for sample in each.samples if "path" in sample.labels}
    assert "other" in paths, "unknown paths must not create an unbounded number of time series"
    assert "/anything" not in paths


def test_every_response_has_security_headers_and_an_id(server: ServerProcess) -> None:
    requests = [
        ("GET", "/"),
        ("GET", "/static/page.js"),
        ("GET", "/static/none"),
        ("GET", "/livez"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("PUT", "/v1/predict"),
        ("POST", "/v1/predict"),
    ]
    responses = [server.request(*each) for each in requests] + [server.raw(b"not HTTP\r\n\r\n"), server.post(jpeg())]
    responses += [
        server.request("GET", "/v1/model", host="elsewhere.example"),
        server.post(b"x", content_encoding="gzip"),
    ]
    for each in responses:
        assert {name.decode(): each.headers[name.decode()] for name, _ in SECURITY_HEADERS} == {
            name.decode(): value.decode() for name, value in SECURITY_HEADERS
        }
        assert "server" not in each.headers
        if each.headers["content-type"] == "application/json" and "request_id" in each.document:
            assert each.document["request_id"] == each.headers["x-request-id"]
    ids = [each.headers["x-request-id"] for each in responses]
    assert len(set(ids)) == len(ids)
    policy = responses[0].headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_log_reveals_nothing_of_the_requests(guarded: ServerProcess) -> None:
    authorized = {"authorization": f"Bearer {TOKEN}"}
    body, headers = form([("my secret holiday.jpg", jpeg(7))])
    response = guarded.request("POST", "/v1/predict", body, content_type=headers["content-type"], **authorized)
    assert response.status == 200
    guarded.request("POST", "/v1/predict", b"a letter of mine", **authorized)
    guarded.request("GET", "/v1/model?my=query", authorization="Bearer of bad news")
    text = guarded.log_file.read_text()
    lines = guarded.log_lines()
    assert {"id", "method", "path", "status", "ms", "bytes"} <= next(
        line for line in lines if line["event"] == "request"
    ).keys()
    assert response.document["request_id"] in text
    for secret in (TOKEN, "holiday", "letter", "bad news", "my=query", "JFIF"):
        assert secret not in text


def test_tokens(guarded: ServerProcess) -> None:
    assert guarded.request("GET", "/v1/model", authorization=f"Bearer {TOKEN}").status == 200
    assert guarded.request("GET", "/v1/model", authorization=f"bearer  {TOKEN} ").status == 200
    wrong = [f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, "", "Bearer é"]
    for path in ("/v1/model", "/v1/predict", "/v1/explain", "/metrics", "/openapi.json", "/nowhere"):
        for value in wrong if path == "/v1/model" else wrong[:1]:
            response = guarded.request("GET", path, authorization=value)
            assert (response.status, response.code) == (401, "unauthorized")
            assert response.headers["www-authenticate"] == "Bearer"
        assert guarded.request("GET", path).status == 401
    assert guarded.post(jpeg()).status == 401
    for path in ("/livez", "/readyz", "/", "/static/page.js"):
        assert guarded.request("GET", path).status == 200


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(admission, "hmac", SimpleNamespace(compare_digest=compare))
    options: Any = {"hosts": (), "token": TOKEN, "metrics": Metrics(), "queue_full": lambda: False}
    middleware = AdmissionMiddleware(lambda *_: None, **options)  # type: ignore[arg-type,return-value]
    with pytest.raises(ApiError, match="token is missing or wrong"):
        middleware._check_token("/v1/model", {b"authorization": b"Bearer almost"})
    assert compared == [(b"almost", TOKEN.encode())]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "an address other than loopback requires a token"),
        (["--host", "example.com"], "an address other than loopback requires a token"),
        (["--host", "::"], "an address other than loopback requires a token"),
        (["--token-file", "{folder}/none"], "none cannot be read"),
        (["--token-file", "{folder}/short"], "the token is too short"),
        (["--port", "{busy}"], "cannot listen on"),
        (["--weights", "{folder}/none"], "none"),
    ],
    ids=lambda value: value[0] + " " + value[1].strip("{}") if isinstance(value, list) else "",
)
def test_startup_errors(
    words: list[str], message: str, weights: Path, tmp_path: Path, forge: Forge, monkeypatch: Any
) -> None:
    monkeypatch.delenv("VITRAIL_TOKEN", raising=False)
    (tmp_path / "short").write_text("kryptonite")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        filled = [word.format(folder=tmp_path, busy=listener.getsockname()[1]) for word in words]
        usual = [] if "--weights" in words else ["--weights", str(weights)]
        usual += [] if "--port" in words else ["--port", "0"]
        result = forge.run_cli("serve", MODEL, *usual, *filled, "--quiet", cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert "kryptonite" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "elsewhere.example"}, 421),
        ({"host": "localhost.elsewhere.example"}, 421),
        ({"host": ""}, 421),
        ({"host": "[::1"}, 400),
        ({"origin": "https://elsewhere.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1"}, 403),
        ({"origin": "http://[127"}, 400),
    ],
    ids=str,
)
def test_foreign_hosts_and_origins_are_rejected(server: ServerProcess, headers: dict[str, str], status: int) -> None:
    for method, path in (("GET", "/v1/model"), ("POST", "/v1/predict"), ("GET", "/"), ("GET", "/livez")):
        assert server.request(method, path, **headers).status == status


def test_requests_from_the_page_itself_are_accepted(server: ServerProcess) -> None:
    host, port = server.address
    assert server.post(jpeg(), origin=f"http://{host}:{port}").status == 200
    assert server.post(jpeg(), host=f"localhost:{port}", origin=f"http://localhost:{port}").status == 200
    response = server.request(
        "OPTIONS", "/v1/predict", origin=f"http://{host}:{port}", access_control_request_method="POST"
    )
    assert response.status == 405
    assert not [name for name in response.headers if name.startswith("access-control")]
