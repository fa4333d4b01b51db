"""The service as its users meet it: answers, refusals, tokens, headers, logs and figures."""

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
    Served,
    form,
    jpeg,
    write_weights,
)
from tests.forge import Forge
from vitrail import predict
from vitrail.service import gate as gate_module
from vitrail.service.gate import HEADERS, Gate
from vitrail.service.limits import BODY, IMAGES, Refusal
from vitrail.service.metrics import Metrics

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def served(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("served"), weights=weights)
    yield one
    code = one.stop()
    assert code == 0
    assert {line["event"] for line in one.lines()} == {"ready", "request", "draining", "stopped"}


@pytest.fixture(scope="module")
def guarded(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Reached from anywhere, with a token."""
    env = {"VITRAIL_TOKEN": TOKEN}
    one = Served(tmp_path_factory.mktemp("guarded"), "--host", "0.0.0.0", weights=weights, env=env)
    one.place = ("127.0.0.1", one.place[1])
    yield one
    assert one.stop() == 0


def test_a_picture_as_it_is(served: Served, weights: Path, tmp_path: Path) -> None:
    """The answer is that of `vitrail.predict`."""
    for seed in range(3):
        (tmp_path / f"{seed}.jpg").write_bytes(jpeg(seed, 40 + seed))
        told = served.post(jpeg(seed, 40 + seed))
        assert told.status == 200
        assert told.headers["content-type"] == "application/json"
        (row,) = predict(MODEL, [tmp_path / f"{seed}.jpg"], weights=weights)
        assert row.prediction is not None
        expected, got = row.prediction.document(), told.document["predictions"][0]
        assert got.pop("name") is None
        assert got["label"] == expected["label"]
        assert got["confidence"] == pytest.approx(expected["confidence"], abs=2e-6)
        assert [each["label"] for each in got["top"]] == [each["label"] for each in expected["top"]]
        assert got.keys() == expected.keys()
        assert told.document["model"] == {"name": MODEL, "version": served.told["version"]}


@pytest.mark.parametrize("num", [1, 2, IMAGES])
def test_a_form_of_pictures(served: Served, num: int) -> None:
    files = [(f"{number}.jpg", jpeg(number)) for number in range(num)]
    told = served.post_form(files)
    assert told.status == 200
    rows = told.document["predictions"]
    assert [row["name"] for row in rows] == [name for name, _ in files]
    for row, (_, content) in zip(rows, files, strict=True):
        alone = served.post(content).document["predictions"][0]
        assert row["label"] == alone["label"]
        assert row["confidence"] == pytest.approx(alone["confidence"], abs=2e-6)


def test_one_picture_more_than_a_request_holds(served: Served) -> None:
    told = served.post_form([("a.jpg", jpeg())] * (IMAGES + 1))
    assert (told.status, told.code) == (413, "too_many_images")


def test_how_many_labels(served: Served) -> None:
    assert [len(served.post(jpeg(), f"/v1/predict?top={top}").document["predictions"][0]["top"]) for top in (1, 3)] == [
        1,
        3,
    ]
    assert len(served.post(jpeg(), "/v1/predict?top=1000").document["predictions"][0]["top"]) == 4
    for wrong in ("0", "1001", "five", "", "-1", "1e3", "9" * 5000):
        told = served.post(jpeg(), f"/v1/predict?top={wrong}")
        assert (told.status, told.code) == (422, "bad_parameter")


def test_one_bad_picture_among_good_ones(served: Served) -> None:
    told = served.post_form([("a.jpg", jpeg()), ("b.jpg", jpeg()[:300]), ("c.jpg", b""), ("d.jpg", jpeg(1))])
    assert told.status == 200
    rows = told.document["predictions"]
    assert ["error" in row for row in rows] == [False, True, True, False]
    assert rows[1]["error"]["code"] == "bad_image"
    assert rows[1]["name"] == "b.jpg"


def test_nothing_but_bad_pictures(served: Served) -> None:
    for told in (served.post(b"no picture"), served.post_form([("a", b"no"), ("b", b"picture")])):
        assert (told.status, told.code) == (422, "bad_image")
        assert told.document["error"]["hint"]
    assert served.post(b"").code == "bad_request"


def test_where_it_looks(served: Served) -> None:
    numbers = served.post(jpeg(), "/v1/explain").document
    assert numbers["grid"] == [4, 4]
    assert [len(row) for row in numbers["map"]] == [4] * 4
    assert numbers["label"] == served.post(jpeg()).document["predictions"][0]["label"]
    other = served.post(jpeg(), "/v1/explain?class=class%201&method=rollout").document
    assert (other["label"], other["method"]) == ("class 1", "rollout")
    png = served.post(jpeg(), "/v1/explain?form=png")
    assert png.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(png.body)).size == (960, 960)
    view = served.post_form([("a.jpg", jpeg())], "/v1/explain?form=view")
    assert view.status == 200
    assert isinstance(view.document, dict)


@pytest.mark.parametrize(
    ("query", "content", "code"),
    [
        ("method=magic", jpeg(), "bad_parameter"),
        ("class=nobody", jpeg(), "bad_parameter"),
        ("form=svg", jpeg(), "bad_parameter"),
        ("", b"no picture", "bad_image"),
        ("", b"", "bad_request"),
    ],
)
def test_what_cannot_be_explained(served: Served, query: str, content: bytes, code: str) -> None:
    told = served.post(content, f"/v1/explain?{query}")
    assert told.code == code
    assert 400 <= told.status < 500


def test_two_pictures_are_not_explained_at_once(served: Served) -> None:
    told = served.post_form([("a.jpg", jpeg())] * 2, "/v1/explain")
    assert (told.status, told.code) == (413, "too_many_images")


def test_facts_and_health(served: Served) -> None:
    facts = served.ask("GET", "/v1/model").document
    assert facts["labels"] == [f"class {number}" for number in range(4)]
    assert facts["limits"]["bytes"] == BODY
    assert facts["version"] == served.told["version"]
    assert served.ask("GET", "/livez").document == {"status": "alive"}
    assert served.ask("GET", "/readyz").document == {"status": "ready"}
    assert served.ask("GET", "/openapi.json").document["paths"].keys() >= {"/v1/predict", "/v1/explain"}


def test_figures_are_counted(served: Served) -> None:
    before = served.metric("vitrail_requests_total", path="/v1/predict", status="200")
    images = served.metric("vitrail_batch_images_sum")
    served.post(jpeg())
    served.post_form([("a.jpg", jpeg())] * 3)
    assert served.metric("vitrail_requests_total", path="/v1/predict", status="200") == before + 2
    assert served.metric("vitrail_batch_images_sum") == images + 4
    served.ask("GET", "/anything?at=all")
    families = list(text_string_to_metric_families(served.ask("GET", "/metrics").body.decode()))
    paths = {sample.labels["path"] for each in families for sample in each.samples if "path" in sample.labels}
    assert "other" in paths, "what strangers ask for must not make figures without end"
    assert "/anything" not in paths


def test_every_answer_has_its_headers_and_an_id(served: Served) -> None:
    asked = [
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
    told = [served.ask(*each) for each in asked] + [served.raw(b"no HTTP\r\n\r\n"), served.post(jpeg())]
    told += [served.ask("GET", "/v1/model", host="elsewhere.example"), served.post(b"x", content_encoding="gzip")]
    for each in told:
        assert {name.decode(): each.headers[name.decode()] for name, _ in HEADERS} == {
            name.decode(): value.decode() for name, value in HEADERS
        }
        assert "server" not in each.headers
        if each.headers["content-type"] == "application/json" and "request_id" in each.document:
            assert each.document["request_id"] == each.headers["x-request-id"]
    names = [each.headers["x-request-id"] for each in told]
    assert len(set(names)) == len(names)
    policy = told[0].headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_log_tells_nothing_of_what_was_sent(guarded: Served) -> None:
    right = {"authorization": f"Bearer {TOKEN}"}
    body, headers = form([("my secret holiday.jpg", jpeg(7))])
    told = guarded.ask("POST", "/v1/predict", body, content_type=headers["content-type"], **right)
    assert told.status == 200
    guarded.ask("POST", "/v1/predict", b"a letter of mine", **right)
    guarded.ask("GET", "/v1/model?my=query", authorization="Bearer of bad news")
    text = guarded.log.read_text()
    lines = guarded.lines()
    assert {"id", "method", "path", "status", "ms", "bytes"} <= next(
        line for line in lines if line["event"] == "request"
    ).keys()
    assert told.document["request_id"] in text
    for secret in (TOKEN, "holiday", "letter", "bad news", "my=query", "JFIF"):
        assert secret not in text


def test_tokens(guarded: Served) -> None:
    assert guarded.ask("GET", "/v1/model", authorization=f"Bearer {TOKEN}").status == 200
    assert guarded.ask("GET", "/v1/model", authorization=f"bearer  {TOKEN} ").status == 200
    wrong = [f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, "", "Bearer é"]
    for path in ("/v1/model", "/v1/predict", "/v1/explain", "/metrics", "/openapi.json", "/nowhere"):
        for given in wrong if path == "/v1/model" else wrong[:1]:
            told = guarded.ask("GET", path, authorization=given)
            assert (told.status, told.code) == (401, "unauthorized")
            assert told.headers["www-authenticate"] == "Bearer"
        assert guarded.ask("GET", path).status == 401
    assert guarded.post(jpeg()).status == 401
    for path in ("/livez", "/readyz", "/", "/static/page.js"):
        assert guarded.ask("GET", path).status == 200


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(gate_module, "hmac", SimpleNamespace(compare_digest=compare))
    gate = Gate(lambda *_: None, hosts=(), token=TOKEN, metrics=Metrics(), full=lambda: False)  # type: ignore[arg-type]
    with pytest.raises(Refusal, match="wants its token"):
        gate._check_token("/v1/model", {b"authorization": b"Bearer almost"})
    assert compared == [(b"almost", TOKEN.encode())]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "an address that others can reach needs a token"),
        (["--host", "example.com"], "an address that others can reach needs a token"),
        (["--host", "::"], "an address that others can reach needs a token"),
        (["--token-file", "{folder}/none"], "none cannot be read"),
        (["--token-file", "{folder}/short"], "the token is too short"),
        (["--port", "{busy}"], "cannot be listened on"),
        (["--weights", "{folder}/none"], "none"),
    ],
    ids=lambda value: value[0] + " " + value[1].strip("{}") if isinstance(value, list) else "",
)
def test_what_cannot_be_served(
    words: list[str], message: str, weights: Path, tmp_path: Path, forge: Forge, monkeypatch: Any
) -> None:
    monkeypatch.delenv("VITRAIL_TOKEN", raising=False)
    (tmp_path / "short").write_text("kryptonite")
    with socket.create_server(("127.0.0.1", 0)) as line:
        filled = [word.format(folder=tmp_path, busy=line.getsockname()[1]) for word in words]
        usual = [] if "--weights" in words else ["--weights", str(weights)]
        usual += [] if "--port" in words else ["--port", "0"]
        told = forge.told("serve", MODEL, *usual, *filled, "--quiet", cwd=tmp_path)
    assert told.returncode == 2
    assert message in told.stderr
    assert "Traceback" not in told.stderr
    assert "kryptonite" not in told.stderr
    assert told.stdout == ""


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
def test_pages_of_other_sites(served: Served, headers: dict[str, str], status: int) -> None:
    for method, path in (("GET", "/v1/model"), ("POST", "/v1/predict"), ("GET", "/"), ("GET", "/livez")):
        assert served.ask(method, path, **headers).status == status


def test_the_page_itself_may_ask(served: Served) -> None:
    host, port = served.place
    assert served.post(jpeg(), origin=f"http://{host}:{port}").status == 200
    assert served.post(jpeg(), host=f"localhost:{port}", origin=f"http://localhost:{port}").status == 200
    told = served.ask("OPTIONS", "/v1/predict", origin=f"http://{host}:{port}", access_control_request_method="POST")
    assert told.status == 405
    assert not [name for name in told.headers if name.startswith("access-control")]
