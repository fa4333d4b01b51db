"""Thumbnails for pages, as data URLs, looked up by name in any source: images, frames of videos, waveforms."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

from PIL import Image

from vitrail.data.decode import Pixels, as_pixels, decode_damaged_jpeg, decode_image
from vitrail.data.table import Content, Item, Source, Table
from vitrail.errors import VitrailError
from vitrail.inspection.overlay import resize_to_fit
from vitrail.report.clip_thumbnails import draw_clip


class Thumbnails:
    """The images or clips of a source by name."""

    def __init__(self, source: Source, names: Iterable[str]) -> None:
        """Find only `names`; shards can only be read in order, so their content is kept in memory."""
        self.contents: dict[str, Content | Item] = {}
        self.modality = source.modalities[0]
        remaining = set(names)
        if isinstance(source, Table):
            self.contents = {name: source[row] for row, name in enumerate(source.names) if name in remaining}
            return
        for item in source:
            if not remaining:
                break
            if item.name in remaining:
                remaining.remove(item.name)
                self.contents[item.name] = _read_content(item)

    def content(self, name: str) -> Content:
        """The stored content of an image; empty if it no longer exists."""
        found = self.contents.get(name, b"")
        return _read_content(found) if isinstance(found, Item) else found

    def thumbnail(self, name: str, side: int) -> str:
        """A thumbnail as a data URL; empty if the image cannot be shown."""
        return thumbnail(self.content(name), side, modality=self.modality)


def _read_content(item: Item) -> Content:
    try:
        return item.content()
    except (VitrailError, OSError):
        return b""


def thumbnail(content: Content, side: int, *, quality: int = 80, modality: str = "image") -> str:
    """A thumbnail as a data URL; of a damaged image, the part that can be decoded; else empty."""
    pixels: Pixels | None
    if modality != "image":
        pixels = draw_clip(content, modality, side)
        return "" if pixels is None else jpeg_data_url(Image.fromarray(pixels), quality=quality)
    try:
        pixels = decode_image(content) if isinstance(content, bytes) else as_pixels(content)
    except (VitrailError, OSError):
        pixels = decode_damaged_jpeg(content) if isinstance(content, bytes) and content else None
    if pixels is None:
        return ""
    return jpeg_data_url(resize_to_fit(Image.fromarray(pixels), side), quality=quality)


def jpeg_data_url(image: Image.Image, *, quality: int = 80) -> str:
    """Encode an image as a data URL."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
