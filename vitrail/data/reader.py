"""Reads one image: its content, decoded and resized, or its stored pixels from the cache."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.augment import Augment
from vitrail.data.cache import PixelCache, digest
from vitrail.data.decode import Pixels, as_pixels, damaged, decode_image
from vitrail.data.table import Content, Item
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, VitrailError, brief


class Reader(NamedTuple):
    """Reads images for evaluation, or for training if there is an `augment`."""

    preprocess: Preprocess
    augment: Augment | None = None
    cache: PixelCache | None = None
    keys: NDArray[np.uint8] | None = None
    """The cache key of each image by its index, initially zeros: each file is checked for changes once per run."""

    def read(self, item: Item) -> Pixels:
        """The stored pixels of an image: ready for evaluation, or to be augmented."""
        if self.cache is None:
            return self._decode(read_content(item), item.name)
        if self.keys is None or not self.keys[item.index].any():
            key, pixels = self._look_up(item, self.cache)
            if self.keys is not None:
                self.keys[item.index] = np.frombuffer(key, dtype=np.uint8)
            return pixels
        cached = self.cache.get(self.keys[item.index].tobytes(), trusted=True)
        return cached if cached is not None else self._look_up(item, self.cache)[1]

    def _look_up(self, item: Item, cache: PixelCache) -> tuple[bytes, Pixels]:
        """The key and pixels of an image: from the cache, found by its stamp or its content, else decoded."""
        stamp = _stamp(item)
        key = cache.find_key(stamp)
        pixels = None if key is None else cache.get(key)
        if key is not None and pixels is not None:
            return key, pixels
        content = read_content(item)
        key = digest(content)
        pixels = cache.get(key)
        if pixels is None:
            pixels = self._decode(content, item.name)
            cache.put(key, stamp, pixels)
        else:
            cache.put(key, stamp, None)  # the same content under another name
        return key, pixels

    def _decode(self, content: Content, name: str) -> Pixels:
        preprocess, augment = self.preprocess, self.augment
        if isinstance(content, np.ndarray):
            image = as_pixels(content, preprocess.mode)
        elif augment is None:
            image = preprocess.decode(content, name=name)
        else:
            image = decode_image(
                content,
                name=name,
                mode=preprocess.mode,
                background=preprocess.background,
                target_size=lambda rows, columns: augment.stored_size(preprocess, rows, columns),
            )
        return preprocess.resize_and_crop(image) if augment is None else augment.resize_to_stored(preprocess, image)


def form(preprocess: Preprocess, augment: Augment | None) -> str:
    """A string of everything that decides how pixels are stored; it selects the cache."""
    fields = preprocess.model_dump(mode="json", exclude={"mean", "std"})
    if augment is not None:
        fields["stored"] = preprocess.size if augment.crop == "padded" else augment.spare
    return json.dumps(fields, sort_keys=True)


def _stamp(item: Item) -> str:
    try:
        return item.stamp(item.index)
    except OSError as error:
        raise unreadable(item.name, error) from None


def read_content(item: Item) -> Content:
    """The content of an image; every error names it."""
    try:
        return item.content()
    except OSError as error:
        raise unreadable(item.name, error) from None
    except VitrailError:
        raise
    except Exception as error:  # noqa: BLE001 - from the container that holds it
        raise damaged(item.name, brief(error)) from None


def unreadable(name: str, error: OSError) -> DataError:
    """The error for a file that is missing or that may not be read."""
    missing = isinstance(error, FileNotFoundError)
    return DataError(
        f"{name} {'does not exist' if missing else 'cannot be read'}.",
        got=f"{error.strerror or error}.",
        hint="leaving it out." if missing else "fixing its permissions.",
    )
