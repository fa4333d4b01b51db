"""A scikit-learn estimator, for grid searches, cross-validation and pipelines.

Images come as one array (n, Y, X) or (n, Y, X, C), as a table (n, features) of flattened images, or as a list of paths,
PIL images or arrays of any sizes. Vitrail works with 8 bits per channel. Arrays of uint8 are used unchanged; other
numbers are scaled so that the lowest and highest value seen in `fit` become black and white. All pixels share one
scale: separate scales would distort images and amplify the noise of their empty corners. `predict` clips values outside
the range.
"""
# ruff: noqa: N803 - scikit-learn calls the images X

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from vitrail.data.cache import digest
from vitrail.data.decode import Pixels, file_stamp, orient_image, orientation_of, read_file, to_rgb
from vitrail.data.prepare.image import image_loader
from vitrail.data.table import NO_SPLIT, Content, Table
from vitrail.errors import DataError, SpecError, UnknownNameError, WeightsError
from vitrail.objective.classify import Classify
from vitrail.run.artefact import load
from vitrail.run.predictor import calibration_of
from vitrail.training.evaluation import infer
from vitrail.training.learner import Learner
from vitrail.training.world import World
from vitrail.verbs.train import train

BATCH_SIZE = 32
COMMAND = "vitrail.VitClassifier(...).fit(X, y)"
Shape = tuple[int, int] | tuple[int, int, int]
Range = tuple[float, float]
Images = NDArray[Any] | list[Any]


class VitClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """A Vision Transformer as a scikit-learn classifier; `fit` calls `vitrail.train` with the same arguments.

    Parameters
    ----------
    model : name of a model; None for that of the weights, or one that suits the images and the time.
    weights : a file, a run or a name on the hub to start from; None to train from scratch.
    recipe : how to train; "auto" trains the best model it can in the available time.
    minutes : time limit of `fit`; ten minutes unless this or the settings define a length.
    settings : `key=value` strings for fields of the recipe, or of the model if they start with `model.`.
    random_state : the seed, a RandomState to draw it from, or None for the global one.
    run : folder in which to keep the run with its report; without one, the run is deleted after `fit`.
    image_shape : (Y, X) or (Y, X, C) of the images in a table (n, features). None for the smallest square that holds
        all features, padded with black; an image of a single row would be cropped at its ends.

    Attributes
    ----------
    classes_ : the labels, sorted.
    model_ : the trained model, with its `preprocess`, `labels` and `calibration`.
    value_range_ : the values of black and white; None if `fit` saw uint8 arrays or files.
    n_features_in_, feature_names_in_ : for a table, as everywhere in scikit-learn.

    """

    def __init__(
        self,
        *,
        model: str | None = None,
        weights: str | Path | None = None,
        recipe: str = "auto",
        minutes: float | None = None,
        settings: Sequence[str] = (),
        random_state: int | np.random.RandomState | None = 0,
        run: str | Path | None = None,
        image_shape: Shape | None = None,
    ) -> None:
        self.model = model
        self.weights = weights
        self.recipe = recipe
        self.minutes = minutes
        self.settings = settings
        self.random_state = random_state
        self.run = run
        self.image_shape = image_shape

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def fit(self, X: Any, y: Any) -> Self:
        """Train on labelled images: at least two classes with two images each."""
        for name in ("n_features_in_", "feature_names_in_"):  # an earlier fit may have seen another form of X
            self.__dict__.pop(name, None)
        y = validate_data(self, X="no_validation", y=y)
        check_classification_targets(y)
        images = self._convert(X, reset=True)
        check_consistent_length(images, y)
        classes, targets = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"Training needs at least two classes. Got only one class, {classes[0]!r}.")
        value_range = find_range(images)
        table = make_table(images, value_range, tuple(str(label) for label in classes), targets)
        with as_value_errors(), tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
            training = train(
                table if self.run is None else add_digest(table),
                model=self.model,
                weights=self.weights,
                recipe=self.recipe,
                minutes=self.minutes,
                settings=self.settings,
                seed=make_seed(self.random_state),
                run=Path(folder) / "run" if self.run is None else self.run,
                report=self.run is not None,  # a temporary run is deleted before anyone could read it
                command=COMMAND,
            )
            self.model_ = load(training.run)
        self.classes_, self.value_range_ = classes, value_range
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most likely class of each image."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the calibrated probability of each class, in the order of `classes_`, for each image."""
        check_is_fitted(self)
        images = self._convert(X, reset=False)
        check_values(images, self.value_range_)
        table = make_table(images, self.value_range_, self.model_.labels, np.zeros(len(images), dtype=np.int64))
        loader = image_loader(table, self.model_.preprocess, batch_size=BATCH_SIZE)
        world = World(device=next(self.model_.parameters()).device)
        with as_value_errors():
            answers = infer(Learner(self.model_, Classify()), loader, world)
        probabilities = calibration_of(self.model_).probabilities(answers["logits"]).numpy().astype(np.float64)
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def _convert(self, X: Any, *, reset: bool) -> Images:
        """Convert X to one array of images, or to a list of separate ones."""
        if is_image_list(X):
            return [self._convert_one(each, row) for row, each in enumerate(X)]
        array = check_array(X, allow_nd=True, input_name="X", estimator=self)
        if array.ndim == 2:
            validate_data(self, X, reset=reset, skip_check_array=True)  # the number and the names of the features
            value_range = find_range(array) if reset else self.value_range_
            array = unflatten(array, self.image_shape, black=value_range[0] if value_range else 0.0)
        check_shape(array.shape[1:], "X")
        return array

    def _convert_one(self, image: Any, row: int) -> Any:
        """Convert one element of a list: paths and PIL images stay, anything else becomes an array."""
        if isinstance(image, str | os.PathLike | Image.Image):
            return image
        array = check_array(image, allow_nd=True, input_name=f"X[{row}]", estimator=self)
        check_shape(array.shape, f"X[{row}]")
        return array


def is_image_list(X: Any) -> bool:
    """Whether X is a list of separate images: paths, PIL images, or arrays with rows and columns."""
    if isinstance(X, str | bytes | os.PathLike | Image.Image):
        raise ValueError(f"X must be a list of images, even for a single one. Got a {type(X).__name__}.")  # noqa: TRY004
    if not hasattr(X, "__len__") or getattr(X, "ndim", 1) != 1:
        return False
    if not len(X):
        raise ValueError("There are no images. Got an empty X.")
    first = next(iter(X))
    return isinstance(first, str | os.PathLike | Image.Image) or getattr(first, "ndim", 0) > 1


def unflatten(array: NDArray[Any], image_shape: Shape | None, *, black: float) -> NDArray[Any]:
    """Reshape a table of flattened images to images."""
    num = array.shape[1]
    if image_shape is not None:
        if len(image_shape) not in (2, 3) or math.prod(image_shape) != num:
            raise ValueError(f"image_shape must be (Y, X) or (Y, X, C), the {num} features of X. Got {image_shape}.")
        return array.reshape(len(array), *image_shape)
    side = math.isqrt(num - 1) + 1
    if side**2 > num:
        array = np.pad(array, ((0, 0), (0, side**2 - num)), constant_values=black)
    return array.reshape(len(array), side, side)


def check_shape(shape: tuple[int, ...], name: str) -> None:
    """Reject an array that is not an image."""
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)) or 0 in shape:
        raise ValueError(
            f"An image is an array (Y, X) or (Y, X, C) with one or three channels. Got {name} of shape {shape}."
        )


def iterate_arrays(images: Images) -> Iterator[NDArray[Any]]:
    """All arrays: each array of a list, or the one array of all images."""
    parts = [images] if isinstance(images, np.ndarray) else images
    return (each for each in parts if isinstance(each, np.ndarray))


def find_range(images: Images) -> Range | None:
    """The lowest and the highest value; None if all arrays are uint8."""
    others = [each for each in iterate_arrays(images) if each.dtype != np.uint8]
    if not others:
        return None
    if any(each.dtype == np.uint8 for each in iterate_arrays(images)):
        raise ValueError("Arrays of uint8 (0 to 255) cannot be mixed with other types. Got both in X.")
    return float(min(each.min() for each in others)), float(max(each.max() for each in others))


def check_values(images: Images, value_range: Range | None) -> None:
    """Reject arrays whose type has another scale than in `fit`."""
    for array in iterate_arrays(images):
        if (array.dtype == np.uint8) != (value_range is None):
            seen = "uint8, or files" if value_range is None else f"values from {value_range[0]} to {value_range[1]}"
            raise ValueError(f"Images must have values as in fit. Got {array.dtype}, where fit saw {seen}.")


def to_uint8(array: NDArray[Any], value_range: Range) -> Pixels:
    """Scale a range of values to 0 to 255 and clip the rest."""
    low, high = value_range
    scaled = (array.astype(np.float64) - low) * (255.0 / (high - low) if high > low else 0.0)
    return np.rint(scaled.clip(0.0, 255.0)).astype(np.uint8)


def read_content(images: Images, value_range: Range | None, index: int) -> Content:
    """The content of one image, as Vitrail's sources return it: the bytes of a file, or pixels."""
    image = images[index]
    if isinstance(image, str | os.PathLike):
        return read_file(Path(image))
    if isinstance(image, Image.Image):
        return np.array(orient_image(to_rgb(image), orientation_of(image)))
    return image if image.dtype == np.uint8 or value_range is None else to_uint8(image, value_range)


def read_stamp(images: Images, index: int) -> str:
    """A stamp that changes with the file; empty for images in memory."""
    image = images[index]
    return file_stamp(Path(image)) if isinstance(image, str | os.PathLike) else ""


def make_table(
    images: Images, value_range: Range | None, classes: tuple[str, ...], targets: NDArray[np.int64]
) -> Table:
    """The images as a source that reads them lazily; files are named by their paths, others by number."""
    return Table(
        origin="X",
        names=[
            os.fspath(each) if isinstance(each, str | os.PathLike) else f"{row:06d}" for row, each in enumerate(images)
        ],
        classes=classes,
        labels=targets.astype(np.int32),
        splits=np.full(len(images), NO_SPLIT, dtype=np.int8),
        content=partial(read_content, images, value_range),
        stamp=partial(read_stamp, images),
    )


def add_digest(table: Table) -> Table:
    """Add a digest of the content to the table's origin, so that a run is never resumed with other arrays."""
    hasher = hashlib.blake2b(digest_size=8)
    for index in range(len(table)):
        hasher.update(digest(table.content(index)))
    return replace(table, origin=f"X {hasher.hexdigest()}")


def make_seed(random_state: int | np.random.RandomState | None) -> int:
    """Convert scikit-learn's random_state to a seed for Vitrail."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Raise ValueError for invalid images and parameters, as scikit-learn does."""
    try:
        yield
    except (DataError, SpecError, UnknownNameError, WeightsError) as error:
        raise ValueError(str(error)) from error
