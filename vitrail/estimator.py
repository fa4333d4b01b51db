"""Vitrail as scikit-learn has it: an estimator that is fitted, searched over, put in pipelines and pickled.

Pictures come as one array (n, Y, X) or (n, Y, X, C), as a table (n, features) of flattened ones, or as a list of paths,
PIL images or arrays of any sizes. Vitrail's pictures have 8 bits. Arrays of uint8 are taken as they are; of other
numbers the lowest and the highest value of all that is seen in `fit` become black and white, one scale for all pixels:
a scale of its own for each pixel would tear a picture apart, and make the noise of its empty corners as loud as the
rest. What lies beyond these values in `predict` is clipped.
"""
# ruff: noqa: N803 - scikit-learn calls the pictures X

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
from vitrail.data.decode import Pixels, file_stamp, orientation_of, read_file, to_rgb, upright
from vitrail.data.loader import Loader
from vitrail.data.table import NO_SPLIT, Content, Table
from vitrail.errors import DataError, SpecError, UnknownNameError, WeightsError
from vitrail.run.artefact import load
from vitrail.run.predictor import calibration_of
from vitrail.training.evaluation import infer
from vitrail.training.world import World
from vitrail.verbs.train import train

BATCH = 32
COMMAND = "vitrail.VitClassifier(...).fit(X, y)"
Shape = tuple[int, int] | tuple[int, int, int]
Range = tuple[float, float]
Pictures = NDArray[Any] | list[Any]


class VitClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # they carry no types
    """A Vision Transformer as a classifier of scikit-learn, trained as `vitrail.train` does with the same words.

    Parameters
    ----------
    model : name of a model; None for the one of the weights, or one that suits pictures and time.
    weights : a file, a run or a name on the hub to start from; None to train from scratch.
    recipe : how to train; "auto" climbs as high as the time allows.
    minutes : the time that `fit` may take; without it and without a length in the settings, ten.
    settings : words `key=value` for fields of the recipe, or of the model if they begin with `model.`.
    random_state : the seed; a RandomState, or None for the global one, to draw it from.
    run : a folder that keeps the run with its report; without one, it is deleted after `fit`.
    image_shape : (Y, X) or (Y, X, C) of the pictures in a table (n, features). None for a square: the smallest that
        holds all features, filled up with black. One row of them would be cropped at its ends.

    Attributes
    ----------
    classes_ : the labels, sorted.
    model_ : the trained model, with its `preprocess`, `labels` and `calibration`.
    value_range_ : the values that are black and white; None if the arrays seen in `fit` were uint8, or files.
    n_features_in_, feature_names_in_ : of a table, as everywhere in scikit-learn.

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
        """Train on pictures and their labels: at least two classes, of two pictures each."""
        for name in ("n_features_in_", "feature_names_in_"):  # of a fit before, perhaps of pictures of another form
            self.__dict__.pop(name, None)
        y = validate_data(self, X="no_validation", y=y)
        check_classification_targets(y)
        pictures = self._pictures(X, reset=True)
        check_consistent_length(pictures, y)
        classes, numbers = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"There is one class only, so nothing to tell apart. Got {classes[0]!r}.")
        value_range = range_of(pictures)
        table = table_of(pictures, value_range, tuple(str(label) for label in classes), numbers)
        with as_value_errors(), tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
            training = train(
                table if self.run is None else with_digest(table),
                model=self.model,
                weights=self.weights,
                recipe=self.recipe,
                minutes=self.minutes,
                settings=self.settings,
                seed=seed_of(self.random_state),
                run=Path(folder) / "run" if self.run is None else self.run,
                report=self.run is not None,  # what is deleted at once is read by nobody
                command=COMMAND,
            )
            self.model_ = load(training.run)
        self.classes_, self.value_range_ = classes, value_range
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each picture."""
        odds = self.predict_proba(X)
        return self.classes_[odds.argmax(axis=1)]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The calibrated probability of each class, in the order of `classes_`, for each picture."""
        check_is_fitted(self)
        pictures = self._pictures(X, reset=False)
        check_values(pictures, self.value_range_)
        table = table_of(pictures, self.value_range_, self.model_.labels, np.zeros(len(pictures), dtype=np.int64))
        loader = Loader(source=table, preprocess=self.model_.preprocess, batch_size=BATCH)
        with as_value_errors():
            outputs = infer(self.model_, loader, World(device=next(self.model_.parameters()).device))
        odds = calibration_of(self.model_).probabilities(outputs.logits).numpy().astype(np.float64)
        return odds / odds.sum(axis=1, keepdims=True)

    def _pictures(self, X: Any, *, reset: bool) -> Pictures:
        """The pictures of X: an array of them, or a list if each is a thing of its own."""
        if is_listed(X):
            return [self._picture(each, row) for row, each in enumerate(X)]
        array = check_array(X, allow_nd=True, input_name="X", estimator=self)
        if array.ndim == 2:
            validate_data(self, X, reset=reset, skip_check_array=True)  # the number and the names of the features
            seen = range_of(array) if reset else self.value_range_
            array = unflattened(array, self.image_shape, black=seen[0] if seen else 0.0)
        check_shape(array.shape[1:], "X")
        return array

    def _picture(self, picture: Any, row: int) -> Any:
        """One of a list: a path or a PIL image as it is, anything else as an array."""
        if isinstance(picture, str | os.PathLike | Image.Image):
            return picture
        array = check_array(picture, allow_nd=True, input_name=f"X[{row}]", estimator=self)
        check_shape(array.shape, f"X[{row}]")
        return array


def is_listed(X: Any) -> bool:
    """Whether each picture of X is a thing of its own: a path, a PIL image, or an array with rows and columns."""
    if isinstance(X, str | bytes | os.PathLike | Image.Image):
        raise ValueError(f"X is a list of pictures, be it of one. Got a {type(X).__name__}.")  # noqa: TRY004
    if not hasattr(X, "__len__") or getattr(X, "ndim", 1) != 1:
        return False
    if not len(X):
        raise ValueError("There are no pictures. Got an empty X.")
    first = next(iter(X))
    return isinstance(first, str | os.PathLike | Image.Image) or getattr(first, "ndim", 0) > 1


def unflattened(array: NDArray[Any], image_shape: Shape | None, *, black: float) -> NDArray[Any]:
    """A table of flattened pictures as pictures."""
    num = array.shape[1]
    if image_shape is not None:
        if len(image_shape) not in (2, 3) or math.prod(image_shape) != num:
            raise ValueError(f"image_shape is (Y, X) or (Y, X, C) of the {num} features of X. Got {image_shape}.")
        return array.reshape(len(array), *image_shape)
    side = math.isqrt(num - 1) + 1
    if side**2 > num:
        array = np.pad(array, ((0, 0), (0, side**2 - num)), constant_values=black)
    return array.reshape(len(array), side, side)


def check_shape(shape: tuple[int, ...], name: str) -> None:
    """Refuse an array that is no picture."""
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)) or 0 in shape:
        raise ValueError(
            f"A picture is an array (Y, X) or (Y, X, C) of one or three channels. Got {name} of shape {shape}."
        )


def arrays_of(pictures: Pictures) -> Iterator[NDArray[Any]]:
    """All that is an array, many pictures at a time if they are in one."""
    parts = [pictures] if isinstance(pictures, np.ndarray) else pictures
    return (each for each in parts if isinstance(each, np.ndarray))


def range_of(pictures: Pictures) -> Range | None:
    """The lowest and the highest value; None if there are no arrays but of uint8."""
    others = [each for each in arrays_of(pictures) if each.dtype != np.uint8]
    if not others:
        return None
    if any(each.dtype == np.uint8 for each in arrays_of(pictures)):
        raise ValueError("Arrays of uint8, which are 0 to 255, cannot be mixed with others. Got both in X.")
    return float(min(each.min() for each in others)), float(max(each.max() for each in others))


def check_values(pictures: Pictures, value_range: Range | None) -> None:
    """Refuse numbers that do not mean what they meant in `fit`."""
    for array in arrays_of(pictures):
        if (array.dtype == np.uint8) != (value_range is None):
            seen = "uint8, or files" if value_range is None else f"values from {value_range[0]} to {value_range[1]}"
            raise ValueError(f"Pictures have values as in fit. Got {array.dtype}, where fit saw {seen}.")


def eight_bits(array: NDArray[Any], value_range: Range) -> Pixels:
    """Values of a range as 0 to 255; what lies beyond is clipped."""
    low, high = value_range
    scaled = (array.astype(np.float64) - low) * (255.0 / (high - low) if high > low else 0.0)
    return np.rint(scaled.clip(0.0, 255.0)).astype(np.uint8)


def content_of(pictures: Pictures, value_range: Range | None, index: int) -> Content:
    """One picture as Vitrail's sources give it: the bytes of a file, or pixels."""
    picture = pictures[index]
    if isinstance(picture, str | os.PathLike):
        return read_file(Path(picture))
    if isinstance(picture, Image.Image):
        return np.array(upright(to_rgb(picture), orientation_of(picture)))
    return picture if picture.dtype == np.uint8 or value_range is None else eight_bits(picture, value_range)


def stamp_of(pictures: Pictures, index: int) -> str:
    """What tells that a file has changed."""
    picture = pictures[index]
    return file_stamp(Path(picture)) if isinstance(picture, str | os.PathLike) else ""


def table_of(
    pictures: Pictures, value_range: Range | None, classes: tuple[str, ...], numbers: NDArray[np.int64]
) -> Table:
    """The pictures as a source, each made when it is asked for; files are called by their paths, others by number."""
    return Table(
        origin="X",
        names=[
            os.fspath(each) if isinstance(each, str | os.PathLike) else f"{row:06d}"
            for row, each in enumerate(pictures)
        ],
        classes=classes,
        labels=numbers.astype(np.int32),
        splits=np.full(len(pictures), NO_SPLIT, dtype=np.int8),
        content=partial(content_of, pictures, value_range),
        stamp=partial(stamp_of, pictures),
    )


def with_digest(table: Table) -> Table:
    """The same under a name that tells its content, so that a run is not gone on with for other arrays."""
    made = hashlib.blake2b(digest_size=8)
    for index in range(len(table)):
        made.update(digest(table.content(index)))
    return replace(table, origin=f"X {made.hexdigest()}")


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """A seed for Vitrail, from what scikit-learn takes for one."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Tell what is wrong with pictures and parameters as scikit-learn does."""
    try:
        yield
    except (DataError, SpecError, UnknownNameError, WeightsError) as error:
        raise ValueError(str(error)) from error
