"""The files of a multipart form.

Parsed here because the body is bounded and already in memory, so searching for boundaries is fast. Starlette's parser
reads the headers of parts byte by byte in Python, which takes seconds for a hostile form, and writes files to disk.
"""

from __future__ import annotations

from collections.abc import Iterator

from python_multipart.multipart import parse_options_header

from vitrail.service.limits import MAX_IMAGES, ApiError

NamedFile = tuple[str | None, bytes]
MAX_BOUNDARY_BYTES = 70
MAX_PART_HEADER_BYTES = 8192
MAX_PARTS = 2 * MAX_IMAGES  # leaves room for fields that are not files; they are ignored
HINT = "curl -F image=@image.jpg."


def parse_files(content: bytes, content_type: str) -> list[NamedFile]:
    """The files of a form, with the names that the client gave them."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise ApiError("bad_request", "the form has no valid boundary.", HINT)
    files: list[NamedFile] = []
    for num, (head, body) in enumerate(_iter_parts(content, boundary), 1):
        options = _parse_disposition(head)
        if b"filename" in options:
            files.append((options[b"filename"].decode("utf-8", "replace"), body))
        if len(files) > MAX_IMAGES or num > MAX_PARTS:
            raise ApiError("too_many_images", f"a request may hold at most {MAX_IMAGES} images.", "multiple requests.")
    if not files:
        raise ApiError("bad_request", "the form contains no file.", HINT)
    return files


def _iter_parts(content: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes]]:
    line = b"\r\n--" + boundary
    start = len(line) - 2 if content.startswith(line[2:]) else _find_after(content, line, 0)
    while not content.startswith(b"--", start):
        # The rest of the boundary's line is blank; a part without headers begins with its blank line.
        head = content.find(b"\r\n", start, start + MAX_PART_HEADER_BYTES)
        end = content.find(b"\r\n\r\n", head, head + MAX_PART_HEADER_BYTES)
        if head < 0 or end < 0 or content[start:head].strip(b" \t"):
            raise _malformed()
        after = _find_after(content, line, end + 2)
        yield content[head + 2 : end], content[end + 4 : after - len(line)]
        start = after


def _find_after(content: bytes, line: bytes, start: int) -> int:
    found = content.find(line, start)
    if found < 0:
        raise _malformed()
    return found + len(line)


def _parse_disposition(head: bytes) -> dict[bytes, bytes]:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            return parse_options_header(value)[1]
    raise _malformed()


def _malformed() -> ApiError:
    return ApiError("bad_request", "the form is malformed.", HINT)
