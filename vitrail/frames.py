"""Messages between processes: a JSON document and byte strings; nothing is pickled."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:  # asyncio is slow to import, and the decoder's guard does without
    from asyncio import StreamReader, StreamWriter

HEAD = struct.Struct("!I")
Frame = tuple[dict[str, Any], list[bytes]]


def pack_frame(document: dict[str, Any], contents: Sequence[bytes] = ()) -> list[bytes]:
    """The chunks to write for a document and its byte strings."""
    text = json.dumps({**document, "lengths": [len(content) for content in contents]}).encode()
    return [HEAD.pack(len(text)), text, *contents]


def read_frame(file: BinaryIO) -> Frame | None:
    """Read the next frame; None at the end of the file."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    document = json.loads(file.read(*HEAD.unpack(head)))
    return document, [file.read(length) for length in document.pop("lengths")]


async def receive_frame(reader: StreamReader) -> Frame:
    """Read the next frame without blocking the event loop."""
    (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
    document = json.loads(await reader.readexactly(length))
    return document, [await reader.readexactly(length) for length in document.pop("lengths")]


async def send_frame(writer: StreamWriter, document: dict[str, Any], contents: Sequence[bytes] = ()) -> None:
    """Write a frame and wait until it is flushed."""
    writer.writelines(pack_frame(document, contents))
    await writer.drain()
