"""From a picture to the pixels of a batch: its content, decoded, in its stored form from the cache, augmented."""

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
    """Reads pictures for evaluation, or for training if there is an `augment`."""

    preprocess: Preprocess
    augment: Augment | None = None
    cache: PixelCache | None = None
    keys: NDArray[np.uint8] | None = None
    """The cache's key of each picture by its index, zeros at first: a file is looked at once a run."""

    def stored(self, picture: Item) -> Pixels:
        """The picture as the cache holds it: ready for evaluation, or waiting to be augmented."""
        if self.cache is None:
            return self._decoded(read_content(picture), picture.name)
        if self.keys is None or not self.keys[picture.index].any():
            key, pixels = self._looked_up(picture, self.cache)
            if self.keys is not None:
                self.keys[picture.index] = np.frombuffer(key, dtype=np.uint8)
            return pixels
        known = self.cache.get(self.keys[picture.index].tobytes(), trusted=True)
        return known if known is not None else self._looked_up(picture, self.cache)[1]

    def _looked_up(self, picture: Item, cache: PixelCache) -> tuple[bytes, Pixels]:
        """The key and the pixels of a picture: from the cache if it is there by its stamp or content, else decoded."""
        stamp = _stamp(picture)
        key = cache.known(stamp)
        pixels = None if key is None else cache.get(key)
        if key is not None and pixels is not None:
            return key, pixels
        content = read_content(picture)
        key = digest(content)
        pixels = cache.get(key)
        if pixels is None:
            pixels = self._decoded(content, picture.name)
            cache.put(key, stamp, pixels)
        else:
            cache.put(key, stamp, None)  # the same picture under another name
        return key, pixels

    def _decoded(self, content: Content, name: str) -> Pixels:
        preprocess, augment = self.preprocess, self.augment
        if isinstance(content, np.ndarray):
            picture = as_pixels(content, preprocess.mode)
        elif augment is None:
            picture = preprocess.decode(content, name=name)
        else:
            picture = decode_image(
                content,
                name=name,
                mode=preprocess.mode,
                background=preprocess.background,
                target=lambda rows, columns: augment.stored_size(preprocess, rows, columns),
            )
        return preprocess.pixels(picture) if augment is None else augment.stored(preprocess, picture)


def form(preprocess: Preprocess, augment: Augment | None) -> str:
    """What decides how pixels are stored, for the name of the cache."""
    fields = preprocess.model_dump(mode="json", exclude={"mean", "std"})
    if augment is not None:
        fields["stored"] = preprocess.size if augment.crop == "padded" else augment.spare
    return json.dumps(fields, sort_keys=True)


def _stamp(picture: Item) -> str:
    try:
        return picture.stamp(picture.index)
    except OSError as error:
        raise unreadable(picture.name, error) from None


def read_content(picture: Item) -> Content:
    """A picture's content; whatever keeps it from being read is told by name."""
    try:
        return picture.content()
    except OSError as error:
        raise unreadable(picture.name, error) from None
    except VitrailError:
        raise
    except Exception as error:  # noqa: BLE001 - of the container that it lies in
        raise damaged(picture.name, brief(error)) from None


def unreadable(name: str, error: OSError) -> DataError:
    """The error for a file that the system does not let us read, or that is gone."""
    gone = isinstance(error, FileNotFoundError)
    return DataError(
        f"{name} {'is not there' if gone else 'cannot be read'}.",
        got=f"{error.strerror or error}.",
        hint="leaving it out." if gone else "the right to read it.",
    )
