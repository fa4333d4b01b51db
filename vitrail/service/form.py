"""The pictures of a multipart form.

By hand, for the body is bounded and here as a whole: looking for boundaries takes no time. Starlette's parser goes
through the headers of parts byte by byte in Python, seconds for a hostile form, and writes pictures to the disk.
"""

from __future__ import annotations

from collections.abc import Iterator

from python_multipart.multipart import parse_options_header

from vitrail.service.limits import IMAGES, Refusal

Named = tuple[str | None, bytes]
LONGEST_BOUNDARY = 70
LONGEST_HEAD = 8192  # bytes of a part's headers
MOST_PARTS = 2 * IMAGES  # fields that are no files may stand among them, and are not looked at
HINT = "curl -F image=@picture.jpg."


def files_of(content: bytes, content_type: str) -> list[Named]:
    """The files of a form with the names that they are said to have."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= LONGEST_BOUNDARY:
        raise Refusal("bad_request", "the form has no boundary.", HINT)
    found: list[Named] = []
    for num, (head, body) in enumerate(_parts(content, boundary), 1):
        options = _disposition(head)
        if b"filename" in options:
            found.append((options[b"filename"].decode("utf-8", "replace"), body))
        if len(found) > IMAGES or num > MOST_PARTS:
            raise Refusal("too_many_images", f"a request holds at most {IMAGES} pictures.", "several requests.")
    if not found:
        raise Refusal("bad_request", "there is no file in the form.", HINT)
    return found


def _parts(content: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes]]:
    line = b"\r\n--" + boundary
    start = len(line) - 2 if content.startswith(line[2:]) else _after(content, line, 0)
    while not content.startswith(b"--", start):
        # The rest of the boundary's line is blank; a part without headers begins with its blank line.
        head = content.find(b"\r\n", start, start + LONGEST_HEAD)
        end = content.find(b"\r\n\r\n", head, head + LONGEST_HEAD)
        if head < 0 or end < 0 or content[start:head].strip(b" \t"):
            raise _unreadable()
        after = _after(content, line, end + 2)
        yield content[head + 2 : end], content[end + 4 : after - len(line)]
        start = after


def _after(content: bytes, line: bytes, start: int) -> int:
    found = content.find(line, start)
    if found < 0:
        raise _unreadable()
    return found + len(line)


def _disposition(head: bytes) -> dict[bytes, bytes]:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            return parse_options_header(value)[1]
    raise _unreadable()


def _unreadable() -> Refusal:
    return Refusal("bad_request", "the form cannot be read.", HINT)
