"""From a picture to the pixels of a batch: its content, decoded, in its stored form from the cache, augmented."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from vitrail.data.augment import Augment
from vitrail.data.cache import PixelCache, digest
from vitrail.data.decode import Pixels, as_pixels, damaged, decode_image
from vitrail.data.table import Content, Picture
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, VitrailError, brief


class Reader(NamedTuple):
    """Reads pictures for evaluation, or for training if there is an `augment`."""

    preprocess: Preprocess
    augment: Augment | None = None
    cache: PixelCache | None = None

    def stored(self, picture: Picture) -> Pixels:
        """The picture as the cache holds it: ready for evaluation, or waiting to be augmented."""
        if self.cache is None:
            return self._decoded(read_content(picture), picture.name)
        stamp = _stamp(picture)
        key = self.cache.known(stamp)
        pixels = None if key is None else self.cache.get(key)
        if pixels is not None:
            return pixels
        content = read_content(picture)
        key = digest(content)
        pixels = self.cache.get(key)
        if pixels is None:
            pixels = self._decoded(content, picture.name)
            self.cache.put(key, stamp, pixels)
        else:
            self.cache.put(key, stamp, None)  # the same picture under another name
        return pixels

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


def _stamp(picture: Picture) -> str:
    try:
        return picture.stamp(picture.index)
    except OSError as error:
        raise unreadable(picture.name, error) from None


def read_content(picture: Picture) -> Content:
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
