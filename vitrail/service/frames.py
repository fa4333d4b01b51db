"""What the service and its worker send each other: a line of JSON and some bytes, never anything that is unpickled."""

from __future__ import annotations

import json
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Sequence
from typing import Any, BinaryIO

HEAD = struct.Struct("!I")
Frame = tuple[dict[str, Any], list[bytes]]


def packed(document: dict[str, Any], contents: Sequence[bytes] = ()) -> list[bytes]:
    """A document and the bytes that go with it, as what is written one after the other."""
    text = json.dumps({**document, "lengths": [len(content) for content in contents]}).encode()
    return [HEAD.pack(len(text)), text, *contents]


def read_frame(file: BinaryIO) -> Frame | None:
    """The next one; None where nobody will send any more."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    document = json.loads(file.read(*HEAD.unpack(head)))
    return document, [file.read(length) for length in document.pop("lengths")]


async def receive_frame(reader: StreamReader) -> Frame:
    """The next one, without waiting for it in the way of others."""
    (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
    document = json.loads(await reader.readexactly(length))
    return document, [await reader.readexactly(length) for length in document.pop("lengths")]


async def send_frame(writer: StreamWriter, document: dict[str, Any], contents: Sequence[bytes] = ()) -> None:
    """Send one."""
    writer.writelines(packed(document, contents))
    await writer.drain()
