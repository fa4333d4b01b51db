"""What does a model see in pictures whose classes nobody knows?"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.data.decode import Pixels
from vitrail.data.image_files import Found, find_images
from vitrail.errors import DataError, RunError, brief
from vitrail.files import replacing
from vitrail.machine import num_cores
from vitrail.run.open import open_model
from vitrail.run.predictor import TOP, Prediction, Predictor, require_classifier

BATCH = 32
AHEAD = 3  # batches that are decoded while the model looks at one
UNKNOWN = "unknown"
LONGEST = 100  # letters of a folder's name


class Row(NamedTuple):
    """What the model says to one picture, or why nothing."""

    path: str
    prediction: Prediction | None = None
    error: str | None = None


def predict(
    model: str | Path,
    images: Sequence[str | Path],
    *,
    weights: str | Path | None = None,
    top: int = TOP,
    batch_size: int = BATCH,
    copy_to: str | Path | None = None,
) -> Iterator[Row]:
    """Look at pictures one batch after the other; memory does not grow with their number.

    `images` are files, folders, zips, patterns, or `-` for standard input. A picture that cannot be read is a row with
    an error. With `copy_to`, copies are sorted into a folder a class, and one for what is unknown.
    """
    network = open_model(model, weights)
    require_classifier(network)
    predictor = Predictor(network, top=top)
    words = [os.fspath(image) for image in images]
    sorter = None if copy_to is None else Sorter(Path(copy_to), words)
    return _rows(predictor, words, batch_size, sorter)


def _rows(predictor: Predictor, words: Sequence[str], batch_size: int, sorter: Sorter | None) -> Iterator[Row]:
    preprocess = predictor.model.preprocess

    def prepared(found: Found) -> Pixels | str:
        try:
            return preprocess.pixels(preprocess.decode(found.content(), name=found.name))
        except DataError as error:
            return f"{error.wrong.removeprefix(f'{found.name} ')} {error.got}".strip()

    with ThreadPoolExecutor(num_cores(), thread_name_prefix="vitrail-predict") as pool:
        coming: deque[list[tuple[Found, Future[Pixels | str]]]] = deque()
        pictures = _until_wrong(find_images(words))
        wrong: DataError | None = None
        while True:
            while len(coming) < AHEAD and wrong is None:
                batch = []
                for found in islice(pictures, batch_size):
                    if isinstance(found, DataError):
                        wrong = found
                        break
                    batch.append((found, pool.submit(prepared, found)))
                if not batch:
                    break
                coming.append(batch)
            if not coming:
                break
            yield from _of_batch(predictor, [(found, job.result()) for found, job in coming.popleft()], sorter)
        if wrong is not None:  # after the rows of all that came before it
            raise wrong


def _until_wrong(pictures: Iterator[Found]) -> Iterator[Found | DataError]:
    """The pictures, and at the end what was wrong with what should have led to more."""
    try:
        yield from pictures
    except DataError as error:
        yield error


def _of_batch(
    predictor: Predictor, batch: Sequence[tuple[Found, Pixels | str]], sorter: Sorter | None
) -> Iterator[Row]:
    pixels = [each for _, each in batch if isinstance(each, np.ndarray)]
    told = iter(predictor(predictor.model.preprocess.normalise(np.stack(pixels))) if pixels else ())
    for found, each in batch:
        if isinstance(each, str):
            yield Row(found.name, error=each)
            continue
        prediction = next(told)
        if prediction is None:
            yield Row(found.name, error="the model's outputs are not finite.")
            continue
        if sorter is not None:
            sorter.keep(found, UNKNOWN if prediction.unknown else prediction.label)
        yield Row(found.name, prediction)


class Sorter:
    """Copies of pictures in a folder a class; originals are never touched."""

    def __init__(self, root: Path, words: Sequence[str]) -> None:
        self.root = root
        for word in words:
            if Path(word).is_dir() and root.resolve().is_relative_to(Path(word).resolve()):
                raise RunError(
                    "the copies would lie among the pictures.", got=f"--copy-to {root}.", hint="a folder elsewhere."
                )
        if root.exists() and not root.is_dir():
            raise RunError(f"{root} is no folder.", got="a file.", hint="another --copy-to.")

    def keep(self, found: Found, label: str) -> None:
        """Copy one picture into the folder of its label."""
        folder = self.root / (label.replace("/", "_").replace("\0", "_").strip(". ")[:LONGEST] or UNKNOWN)
        name, content = Path(found.name).name, found.content()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for number in count(1):
                target = folder / (name if number == 1 else f"{Path(name).stem}-{number}{Path(name).suffix}")
                if target.exists() and target.read_bytes() == content:
                    return  # kept before
                if target.exists():
                    continue
                with replacing(target, RunError) as part:
                    part.write_bytes(content)
                return
        except OSError as error:
            raise RunError(f"{folder} cannot be written.", got=brief(error), hint="another --copy-to.") from None
