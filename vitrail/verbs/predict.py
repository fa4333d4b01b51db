"""Predict the classes of unlabelled images or clips."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.aligned import TEXT
from vitrail.data.image_files import ImageFile, find_images
from vitrail.errors import DataError, RunError, brief
from vitrail.files import atomic_write
from vitrail.machine import num_cores
from vitrail.run.aligned_model import AlignedModel, load_aligned
from vitrail.run.fill_mask import FilledText, fill_masks
from vitrail.run.number_predictions import NumberPrediction, NumberPredictor
from vitrail.run.open import open_model
from vitrail.run.predictor import (
    TOP,
    Prediction,
    Predictor,
    input_preprocess,
    require_classification,
    require_classifier,
)
from vitrail.run.text_model import load_text_model

Sample = NDArray[Any]
BATCH_SIZE = 32
PREFETCH_BATCHES = 3  # decoded while the model processes one
UNKNOWN = "unknown"
MAX_FOLDER_NAME = 100  # characters


class ImageResult(NamedTuple):
    """The prediction for one image, or the error that prevented it."""

    path: str
    prediction: Prediction | NumberPrediction | None = None
    error: str | None = None


def predict(
    model: str | Path,
    images: Sequence[str | Path],
    *,
    weights: str | Path | None = None,
    top: int = TOP,
    batch_size: int = BATCH_SIZE,
    copy_to: str | Path | None = None,
) -> Iterator[ImageResult]:
    """Predict images batch by batch; memory does not grow with their number.

    `images` are files, folders, zips, patterns, or `-` for standard input; of a run on clips, sounds or videos. An
    unreadable image yields a result with an error. `copy_to` sorts copies into one folder per class, and one for
    unknown images.
    """
    network = open_model(model, weights)
    require_classifier(network)
    if copy_to is not None:
        require_classification(network, "--copy-to")
    predictor = NumberPredictor(network) if network.about.kind == "regression" else Predictor(network, top=top)
    paths = [os.fspath(image) for image in images]
    sorter = None if copy_to is None else CopySorter(Path(copy_to), paths)
    return _predict_all(predictor, paths, batch_size, sorter)


def predict_words(
    run: str | Path, images: Sequence[str | Path], labels: Sequence[str], *, top: int = TOP
) -> Iterator[ImageResult]:
    """Label images or clips by words that need not occur in training, with a run of the recipe align.

    Confidence compares the labels with each other: one of them is always the most likely.
    """
    opened = load_aligned(run)
    opened.require(TEXT)
    words = [label.strip() for label in labels]
    if len(set(words)) < 2 or not all(words) or len(set(words)) < len(words):
        raise DataError("labels are two different words or more.", got=f"{', '.join(words) or 'none'}.")
    anchor = opened.model.spec.anchor
    level = opened.model.spec.level_between(anchor, TEXT)
    texts = opened.embed(TEXT, [opened.read(TEXT, word, name=word) for word in words])[level]
    found = find_images([os.fspath(image) for image in images], modality=anchor)
    return _predict_words(opened, found, words, texts, min(top, len(words)))


def _predict_words(
    opened: AlignedModel, found: Iterator[ImageFile], words: Sequence[str], texts: Tensor, top: int
) -> Iterator[ImageResult]:
    anchor = opened.model.spec.anchor
    level = opened.model.spec.level_between(anchor, TEXT)
    for each in found:
        try:
            own = opened.embed(anchor, [opened.read(anchor, each.content(), name=each.name)])[level]
        except DataError as error:
            yield ImageResult(each.name, error=f"{error.wrong.removeprefix(f'{each.name} ')} {error.got}".strip())
            continue
        probabilities = opened.calibration.probabilities(own @ texts.T / opened.temperature)[0]
        values, indices = probabilities.topk(top)
        pairs = tuple((words[index], value) for index, value in zip(indices.tolist(), values.tolist(), strict=True))
        yield ImageResult(each.name, Prediction(*pairs[0], False, pairs, (pairs[0][0],)))


def predict_texts(run: str | Path, texts: Sequence[str], *, top: int = TOP) -> list[FilledText]:
    """Fill the gaps, written [MASK], of texts with the masked language model of a run."""
    opened = load_text_model(run, kinds=("masked_language",))
    return [fill_masks(opened, text, top=top) for text in texts]


def _predict_all(
    predictor: Predictor | NumberPredictor, paths: Sequence[str], batch_size: int, sorter: CopySorter | None
) -> Iterator[ImageResult]:
    preprocess = input_preprocess(predictor.model)

    def load(found: ImageFile) -> Sample | str:
        try:
            return preprocess.read(found.content(), name=found.name)
        except DataError as error:
            return f"{error.wrong.removeprefix(f'{found.name} ')} {error.got}".strip()

    with ThreadPoolExecutor(num_cores(), thread_name_prefix="vitrail-predict") as pool:
        queue: deque[list[tuple[ImageFile, Future[Sample | str]]]] = deque()
        images = _with_final_error(find_images(paths, modality=preprocess.modality))
        final_error: DataError | None = None
        while True:
            while len(queue) < PREFETCH_BATCHES and final_error is None:
                batch = []
                for found in islice(images, batch_size):
                    if isinstance(found, DataError):
                        final_error = found
                        break
                    batch.append((found, pool.submit(load, found)))
                if not batch:
                    break
                queue.append(batch)
            if not queue:
                break
            yield from _predict_batch(predictor, [(found, job.result()) for found, job in queue.popleft()], sorter)
        if final_error is not None:  # after the results of all images before it
            raise final_error


def _with_final_error(images: Iterator[ImageFile]) -> Iterator[ImageFile | DataError]:
    """The images, followed by the error that ended the search, if any."""
    try:
        yield from images
    except DataError as error:
        yield error


def _predict_batch(
    predictor: Predictor | NumberPredictor, batch: Sequence[tuple[ImageFile, Sample | str]], sorter: CopySorter | None
) -> Iterator[ImageResult]:
    samples = [each for _, each in batch if isinstance(each, np.ndarray)]
    preprocess = input_preprocess(predictor.model)
    predictions = iter(predictor(preprocess.normalise(np.stack(samples))) if samples else ())
    for found, each in batch:
        if isinstance(each, str):
            yield ImageResult(found.name, error=each)
            continue
        prediction = next(predictions)
        if prediction is None:
            yield ImageResult(found.name, error="the model's outputs are not finite.")
            continue
        if sorter is not None and isinstance(prediction, Prediction):
            sorter.copy(found, UNKNOWN if prediction.unknown else prediction.label)
        yield ImageResult(found.name, prediction)


class CopySorter:
    """Copies images into one folder per class; the originals are never touched."""

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self.root = root
        for path in paths:
            if Path(path).is_dir() and root.resolve().is_relative_to(Path(path).resolve()):
                raise RunError(
                    "the copies would end up among the images.", got=f"--copy-to {root}.", hint="a folder elsewhere."
                )
        if root.exists() and not root.is_dir():
            raise RunError(f"{root} is not a folder.", got="a file.", hint="another --copy-to.")

    def copy(self, found: ImageFile, label: str) -> None:
        """Copy one image into the folder of its label."""
        folder = self.root / (label.replace("/", "_").replace("\0", "_").strip(". ")[:MAX_FOLDER_NAME] or UNKNOWN)
        name, content = Path(found.name).name, found.content()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for number in count(1):
                target = folder / (name if number == 1 else f"{Path(name).stem}-{number}{Path(name).suffix}")
                if target.exists() and target.read_bytes() == content:
                    return  # copied before
                if target.exists():
                    continue
                with atomic_write(target, RunError) as part:
                    part.write_bytes(content)
                return
        except OSError as error:
            raise RunError(f"{folder} cannot be written.", got=brief(error), hint="another --copy-to.") from None
