"""Small pictures for pages, as data addresses, found by name in whatever source they came from."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

from PIL import Image

from vitrail.data.decode import Pixels, as_pixels, decode_image, glimpse
from vitrail.data.table import Content, Item, Source, Table
from vitrail.errors import VitrailError
from vitrail.inspection.overlay import fitted


class Thumbnails:
    """The pictures of a source by name."""

    def __init__(self, source: Source, names: Iterable[str]) -> None:
        """Those of `names` alone; of shards, which are read from front to back, they are kept."""
        self.contents: dict[str, Content | Item] = {}
        wanted = set(names)
        if isinstance(source, Table):
            self.contents = {name: source[row] for row, name in enumerate(source.names) if name in wanted}
            return
        for picture in source:
            if not wanted:
                break
            if picture.name in wanted:
                wanted.remove(picture.name)
                self.contents[picture.name] = _content(picture)

    def content(self, name: str) -> Content:
        """What is stored of a picture; nothing, if it is not there any more."""
        found = self.contents.get(name, b"")
        return _content(found) if isinstance(found, Item) else found

    def thumbnail(self, name: str, side: int) -> str:
        """A small picture as a data address; empty if it cannot be shown."""
        return thumbnail(self.content(name), side)


def _content(picture: Item) -> Content:
    try:
        return picture.content()
    except (VitrailError, OSError):
        return b""


def thumbnail(content: Content, side: int, *, quality: int = 80) -> str:
    """A small picture as a data address, as much as can be seen of a broken one; else nothing."""
    pixels: Pixels | None
    try:
        pixels = decode_image(content) if isinstance(content, bytes) else as_pixels(content)
    except (VitrailError, OSError):
        pixels = glimpse(content) if isinstance(content, bytes) and content else None
    if pixels is None:
        return ""
    return jpeg(fitted(Image.fromarray(pixels), side), quality=quality)


def jpeg(image: Image.Image, *, quality: int = 80) -> str:
    """A picture as a data address."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
