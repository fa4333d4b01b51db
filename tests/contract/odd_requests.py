"""Raw requests that must all be rejected at once."""

from __future__ import annotations

import gzip
import json
import struct
import zlib

from tests.contract.damage import bomb

MIB = 2**20


def head(method: str = "POST", path: str = "/v1/predict", *lines: str, host: str = "host: localhost") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", host, *lines, "", ""]).encode("latin-1")


def post_with_body(content: bytes, *lines: str) -> bytes:
    return head("POST", "/v1/predict", f"content-length: {len(content)}", *lines) + content


ODD = {
    "garbage": b"\x00\x01\x02\xff\xfe\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "HTTP/0.9": b"GET /livez\r\n\r\n",
    "another protocol": b"EHLO example.org\r\n",
    "no such version": b"GET /livez HTTP/3.7\r\nhost: localhost\r\n\r\n",
    "no Host": b"GET /v1/model HTTP/1.1\r\n\r\n",
    "HTTP/1.0 without Host": b"GET /v1/model HTTP/1.0\r\n\r\n",
    "two Hosts": head("GET", "/livez", "host: elsewhere.example"),
    "two Hosts the other way": head("GET", "/livez", "host: localhost", host="host: elsewhere.example"),
    "a foreign Host": head("GET", "/livez", host="host: elsewhere.example"),
    "a Host with a slash": head("GET", "/livez", host="host: localhost/elsewhere"[:9] + "\\@elsewhere.example"),
    "an invalid Host": head("GET", "/livez", host="host: [::1"),
    "a foreign Origin": head("GET", "/v1/model", "origin: https://elsewhere.example"),
    "an invalid Origin": head("GET", "/v1/model", "origin: https://[x"),
    "two lengths": head("POST", "/v1/predict", "content-length: 5", "content-length: 6") + b"hello!",
    "two equal lengths": head("POST", "/v1/predict", "content-length: 5", "content-length: 5") + b"hello",
    "a length and chunks": head("POST", "/v1/predict", "content-length: 5", "transfer-encoding: chunked")
    + b"0\r\n\r\n",
    "a negative length": head("POST", "/v1/predict", "content-length: -5") + b"hello",
    "a length in words": head("POST", "/v1/predict", "content-length: five") + b"hello",
    "a length of many digits": head("POST", "/v1/predict", "content-length: " + "9" * 5000),
    "a length with a plus": head("POST", "/v1/predict", "content-length: +5") + b"hello",
    "an unknown transfer encoding": head("POST", "/v1/predict", "transfer-encoding: gzip") + b"hello",
    "chunked twice": head("POST", "/v1/predict", "transfer-encoding: chunked, chunked") + b"0\r\n\r\n",
    "a chunk without a size": head("POST", "/v1/predict", "transfer-encoding: chunked") + b"xyz\r\nhello\r\n0\r\n\r\n",
    "a chunk that is too large": head("POST", "/v1/predict", "transfer-encoding: chunked") + b"f" * 40 + b"\r\n",
    "a chunk that ends wrongly": head("POST", "/v1/predict", "transfer-encoding: chunked") + b"3\r\nhello\r\n0\r\n\r\n",
    "a huge header": head("GET", "/livez", "x: " + "y" * MIB),
    "many headers": head("GET", "/livez", *(f"x{number}: y" for number in range(20_000))),
    "a header without a colon": head("GET", "/livez", "no colon here"),
    "a folded header": head("GET", "/livez", "x: a\r\n b\r\n c"),
    "a header with a NUL": head("GET", "/livez", "x: a\0b"),
    "a header name with a space": head("GET", "/livez", "content-length : 5"),
    "bare line feeds and a space": b"GET /livez HTTP/1.1\nhost: localhost\n bad\n\n",
    "a very long URL": head("GET", "/" + "a" * MIB),
    "a long query": head("POST", "/v1/predict?top=" + "1" * 60_000, "content-length: 0"),
    "a NUL in the path": head("GET", "/livez\0"),
    "an escaped NUL in the path": head("GET", "/livez%00"),
    "bad escapes": head("GET", "/v1/%zz%f%"),
    "bytes that are not UTF-8": head("GET", "/v1/%ff%fe"),
    "a space in the path": head("GET", "/v1/model HTTP/1.1 /x"),
    "path traversal": head("GET", "/static/../../../../etc/passwd"),
    "escaped path traversal": head("GET", "/static/%2e%2e%2f%2e%2e%2fadmission.py"),
    "an absolute URL of another host": head("GET", "http://elsewhere.example/v1/model"),
    "a URL to fetch": head("GET", "/v1/predict?url=http://127.0.0.1:22/"),
    "an authority": head("CONNECT", "elsewhere.example:443"),
    "an asterisk": head("OPTIONS", "*"),
    "OPTIONS": head("OPTIONS", "/v1/predict"),
    "PUT": head("PUT", "/v1/predict", "content-length: 5") + b"hello",
    "DELETE": head("DELETE", "/v1/model"),
    "PATCH": head("PATCH", "/v1/model", "content-length: 5") + b"hello",
    "TRACE": head("TRACE", "/v1/model"),
    "an unknown method": head("IMAGE", "/v1/predict"),
    "GET instead of POST": head("GET", "/v1/predict"),
    "POST instead of GET": head("POST", "/v1/model", "content-length: 5") + b"hello",
    "a web socket": head(
        "GET", "/v1/predict", "connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13"
    ),
    "HTTP/2 by upgrade": head("POST", "/v1/predict", "connection: Upgrade", "upgrade: h2c", "content-length: 0"),
    "gzip": post_with_body(gzip.compress(bytes(10 * MIB)), "content-encoding: gzip"),
    "deflate": post_with_body(zlib.compress(bytes(10 * MIB)), "content-encoding: deflate"),
    "brotli": post_with_body(b"\x1b\xff\xff", "content-encoding: br"),
    "gzip twice": post_with_body(gzip.compress(gzip.compress(bytes(10 * MIB))), "content-encoding: gzip, gzip"),
    "a range request": head("POST", "/v1/predict", "range: bytes=0-1", "content-length: 0"),
    "a URL instead of an image": post_with_body(b"http://127.0.0.1:22/cat.jpg"),
    "a file name instead of an image": post_with_body(b"/etc/passwd"),
    "JSON": post_with_body(json.dumps({"image": "file:///etc/passwd"}).encode(), "content-type: application/json"),
    "XML with entities": post_with_body(
        b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><svg>&a;</svg>',
        "content-type: image/svg+xml",
    ),
    "a zip": post_with_body(b"PK\x03\x04" + bytes(60)),
    "a PDF": post_with_body(b"%PDF-1.7\n%%EOF"),
    "an ICO": post_with_body(b"\x00\x00\x01\x00\x01\x00" + bytes(40)),
    "an image of half a gigapixel": post_with_body(bomb()),
    "a GIF of many pixels": post_with_body(
        b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0) + bytes(6) + b","
    ),
    "a form without a boundary": post_with_body(b"--x--", "content-type: multipart/form-data"),
    "a form with a long boundary": post_with_body(
        b"--x--", "content-type: multipart/form-data; boundary=" + "b" * 5000
    ),
    "a body that is not a form": post_with_body(b"hello", "content-type: multipart/form-data; boundary=b"),
    "a form that ends early": post_with_body(b"--b\r\ncontent-disp", "content-type: multipart/form-data; boundary=b"),
    "an empty form": post_with_body(b"--b--\r\n", "content-type: multipart/form-data; boundary=b"),
    "a part without headers": post_with_body(b"--b\r\n\r\nx\r\n--b--", "content-type: multipart/form-data; boundary=b"),
    "a form without files": post_with_body(
        b'--b\r\ncontent-disposition: form-data; name="image"\r\n\r\nhttp://127.0.0.1/\r\n--b--',
        "content-type: multipart/form-data; boundary=b",
    ),
    "100,000 parts": post_with_body(b"--b\r\n\r\n\r\n" * 100_000, "content-type: multipart/form-data; boundary=b"),
    "100,000 fields": post_with_body(
        b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n' * 100_000 + b"--b--",
        "content-type: multipart/form-data; boundary=b",
    ),
    "100,000 headers of a part": post_with_body(
        b"--b\r\n" + b"x: y\r\n" * 100_000 + b"\r\n\r\n--b--", "content-type: multipart/form-data; boundary=b"
    ),
    "ten megabytes of boundaries": post_with_body(
        (b"\r\n--" + b"b" * 69) * 130_000, "content-type: multipart/form-data; boundary=" + "b" * 70
    ),
}
