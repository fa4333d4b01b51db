"""VitClassifier passes scikit-learn's checks and accepts images in every form."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from vitrail import VitClassifier, load
from vitrail.errors import RunError
from vitrail.estimator import unflatten

FAST = (
    *("model.depth=1", "precision=float32", "eval_every=1000", "workers=0", "cache_gb=0.0"),
    *("augment.flip_rate=0.0", "augment.crop=random", "small_until=0.0", "ema=0.0"),
)
DIGITS = VitClassifier(model="vit_mu_conv2_8", settings=(*FAST, "batch_size=32", "steps=60"))
HASTY = VitClassifier(model="vit_mu_conv2_8", settings=(*FAST, "batch_size=32", "steps=8"))
CHECKED = VitClassifier(
    model="vit_mu_patch2_gap_4", settings=(*FAST, "batch_size=16", "steps=30", "optimizer=adamw", "lr=0.02")
)
CANNOT_MEET: dict[str, str] = {}
"""Checks of scikit-learn that images cannot pass, each with its reason: none so far."""


@parametrize_with_checks([CHECKED], expected_failed_checks=lambda _: CANNOT_MEET)
def test_scikit_learns_own_checks(estimator: VitClassifier, check: Callable[[VitClassifier], None]) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    """400 digits as scikit-learn has them: 64 floats from 0 to 16."""
    data, target = load_digits(return_X_y=True)
    return data[:400], target[:400]


@pytest.fixture(scope="module")
def images(table: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sixty images of three digits in 8 bits, with words as labels."""
    data, target = table
    rows = np.flatnonzero(target < 3)[:60]
    pixels = np.rint(data[rows] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    return pixels, np.array(["zero", "one", "two"])[target[rows]]


@pytest.fixture(scope="module")
def fitted(images: tuple[np.ndarray, np.ndarray]) -> VitClassifier:
    return clone(HASTY).fit(*images)


def paths_of(pixels: np.ndarray, folder: Path) -> list[Path]:
    paths = [folder / f"{number}.png" for number in range(len(pixels))]
    for path, each in zip(paths, pixels, strict=True):
        Image.fromarray(each).save(path)
    return paths


def images_of(pixels: np.ndarray, _: Path) -> list[Image.Image]:
    return [Image.fromarray(each) for each in pixels]


FORMS: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "paths": paths_of,
    "words": lambda pixels, folder: [str(path) for path in paths_of(pixels, folder)],
    "an array of words": lambda pixels, folder: np.array([str(path) for path in paths_of(pixels, folder)]),
    "images": images_of,
    "colour images": lambda pixels, folder: [each.convert("RGB") for each in images_of(pixels, folder)],
    "arrays": lambda pixels, _: list(pixels),
    "one channel": lambda pixels, _: pixels[..., None],
    "colours": lambda pixels, _: np.repeat(pixels[..., None], 3, axis=3),
    "a table": lambda pixels, _: pixels.reshape(len(pixels), -1),
    "a mixture": lambda pixels, folder: [*paths_of(pixels[:9], folder), *pixels[9:30], *images_of(pixels[30:], folder)],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_images_gets_the_same_predictions(
    form: str, images: tuple[np.ndarray, np.ndarray], fitted: VitClassifier, tmp_path: Path
) -> None:
    probabilities = fitted.predict_proba(FORMS[form](images[0], tmp_path))
    np.testing.assert_array_equal(probabilities, fitted.predict_proba(images[0]))


@pytest.mark.parametrize("form", ["paths", "images", "arrays", "a table"])
def test_every_form_of_the_same_images_trains_the_same_model(
    form: str, images: tuple[np.ndarray, np.ndarray], fitted: VitClassifier, tmp_path: Path
) -> None:
    pixels, labels = images
    other = clone(HASTY).fit(FORMS[form](pixels, tmp_path), labels)
    np.testing.assert_array_equal(other.predict_proba(pixels), fitted.predict_proba(pixels))


def test_images_of_different_sizes(images: tuple[np.ndarray, np.ndarray], fitted: VitClassifier) -> None:
    pixels, labels = images
    sizes = [np.kron(each, np.ones((1 + row % 3,) * 2, np.uint8)) for row, each in enumerate(pixels)]
    assert {each.shape for each in sizes} == {(8, 8), (16, 16), (24, 24)}
    same = np.arange(len(pixels)) % 3 == 0
    probabilities = fitted.predict_proba(sizes)
    np.testing.assert_allclose(probabilities[same], fitted.predict_proba(pixels[same]), atol=1e-6)
    assert np.mean(probabilities.argmax(axis=1) == fitted.predict_proba(pixels).argmax(axis=1)) > 0.9
    assert clone(DIGITS).fit(sizes, labels).score(sizes, labels) > 0.9


@pytest.mark.parametrize("change", [lambda x: x / 255.0, lambda x: 3 * x.astype(np.int64) - 7], ids=["floats", "ints"])
def test_other_values_are_scaled_to_8_bits(
    change: Callable[[np.ndarray], np.ndarray], images: tuple[np.ndarray, np.ndarray], fitted: VitClassifier
) -> None:
    pixels, labels = images
    values = change(pixels)
    other = clone(HASTY).fit(values, labels)
    assert other.value_range_ == (values.min(), values.max())
    np.testing.assert_array_equal(other.predict_proba(values), fitted.predict_proba(pixels))
    beyond = np.where(values == values.max(), 10 * values.max(), values)
    np.testing.assert_array_equal(other.predict_proba(beyond), fitted.predict_proba(pixels))
    with pytest.raises(ValueError, match="Got uint8, where fit saw values from"):
        other.predict(pixels)
    with pytest.raises(ValueError, match=r"Got (float|int)64, where fit saw uint8"):
        fitted.predict(values)


def test_cross_validation_of_flattened_digits(table: tuple[np.ndarray, np.ndarray]) -> None:
    scores = cross_val_score(DIGITS, *table, cv=2)
    assert scores.min() > 0.6  # a tenth by chance


def test_cross_validation_of_paths(images: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    scores = cross_val_score(DIGITS, paths_of(images[0], tmp_path), images[1], cv=2)
    assert scores.min() > 0.6  # a third by chance


def test_a_search_finds_the_better_settings(table: tuple[np.ndarray, np.ndarray]) -> None:
    grid = {"settings": [(*FAST, "steps=1"), DIGITS.settings]}
    search = GridSearchCV(DIGITS, grid, cv=2).fit(*table)
    assert search.best_params_ == {"settings": DIGITS.settings}
    assert search.best_score_ > 0.6 > search.cv_results_["mean_test_score"][0]
    assert search.predict(table[0][:5]).shape == (5,)


def test_in_a_pipeline(table: tuple[np.ndarray, np.ndarray]) -> None:
    data, target = table
    pipeline = make_pipeline(MinMaxScaler((-1, 1)), clone(DIGITS)).fit(data[:300], target[:300])
    assert pipeline[-1].value_range_ == (-1.0, 1.0)
    assert pipeline.score(data[300:], target[300:]) > 0.6
    assert pipeline.set_params(vitclassifier__recipe="scratch")[-1].recipe == "scratch"


@pytest.mark.parametrize("names", [["b", "a", "c"], [30, -4, 200], [2.0, 1.0, 30.0], ["", "x/y", "\n"]])
def test_labels_of_any_kind(names: list[Any], images: tuple[np.ndarray, np.ndarray], fitted: VitClassifier) -> None:
    pixels, labels = images
    words = ["zero", "one", "two"]
    named = [names[words.index(label)] for label in labels]
    other = clone(HASTY).fit(pixels, named)
    assert other.classes_.tolist() == sorted(names)
    predicted = other.predict(pixels)
    assert predicted.dtype == other.classes_.dtype
    assert predicted.tolist() == other.classes_[other.predict_proba(pixels).argmax(axis=1)].tolist()
    assert other.score(pixels, named) == fitted.score(pixels, labels)


def test_pickled_and_cloned(images: tuple[np.ndarray, np.ndarray], fitted: VitClassifier) -> None:
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(images[0]), fitted.predict_proba(images[0]))
    unfitted = clone(fitted)
    assert unfitted.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        unfitted.predict(images[0])


def test_the_seed_decides(images: tuple[np.ndarray, np.ndarray], fitted: VitClassifier) -> None:
    def fit_and_predict(random_state: Any) -> list[Any]:
        chosen = clone(HASTY).set_params(random_state=random_state)
        return chosen.fit(*images).predict_proba(images[0]).tolist()

    assert fit_and_predict(np.int64(0)) == fitted.predict_proba(images[0]).tolist()
    seeded = fit_and_predict(np.random.RandomState(7))
    assert seeded == fit_and_predict(np.random.RandomState(7))
    assert seeded != fit_and_predict(0)
    np.random.seed(7)  # noqa: NPY002 - what scikit-learn draws from
    assert fit_and_predict(None) == seeded


def test_a_run_is_kept_only_with_run(
    images: tuple[np.ndarray, np.ndarray],
    fitted: VitClassifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pixels, labels = images
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.delattr("vitrail.kind.classification.write_report")  # no report for a temporary run
        clone(HASTY).fit(pixels, labels)
    assert list(tmp_path.iterdir()) == []
    kept = clone(HASTY).set_params(run="kept").fit(pixels, labels)
    assert load("kept").labels == tuple(kept.classes_)
    assert (tmp_path / "kept" / "report.html").is_file()
    np.testing.assert_array_equal(kept.predict_proba(pixels), fitted.predict_proba(pixels))
    written = (tmp_path / "kept" / "result.json").stat().st_mtime_ns
    clone(kept).fit(pixels, labels)  # the same fit again returns the stored result
    assert (tmp_path / "kept" / "result.json").stat().st_mtime_ns == written
    with pytest.raises(RunError, match="kept holds another run"):
        clone(kept).fit(pixels[:, ::-1], labels)  # as many images with the same labels


def test_tables_become_images(images: tuple[np.ndarray, np.ndarray]) -> None:
    row = np.arange(1, 7)[None]
    assert unflatten(row, None, black=-1.0)[0].tolist() == [[1, 2, 3], [4, 5, 6], [-1, -1, -1]]
    assert unflatten(row[:, :4], None, black=-1.0)[0].tolist() == [[1, 2], [3, 4]]
    assert unflatten(row, (1, 2, 3), black=-1.0)[0].tolist() == [[[1, 2, 3], [4, 5, 6]]]
    pixels, labels = images
    colours = np.repeat(pixels[..., None], 3, axis=3).reshape(len(pixels), -1)
    fitted = clone(HASTY).set_params(image_shape=(8, 8, 3)).fit(colours, labels)
    assert fitted.n_features_in_ == 192
    np.testing.assert_array_equal(fitted.predict_proba(pixels), fitted.predict_proba(colours))
    assert not hasattr(fitted.fit(pixels, labels), "n_features_in_")  # image arrays have none


GREY = np.random.default_rng(0).integers(0, 256, (8, 4, 4), dtype=np.uint8)
WORDS = ["a", "b"] * 4
WRONG: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "no images": ([], [], {}, "There are no images"),
    "no paths": (np.array([], dtype=str), [], {}, "There are no images"),
    "one path": ("image.png", ["a"], {}, "X must be a list of images, even for a single one. Got a str"),
    "one image": (Image.new("L", (4, 4)), ["a"], {}, "X must be a list of images, even for a single one. Got a Image"),
    "lengths": (GREY, WORDS[:-1], {}, r"inconsistent numbers of samples: \[8, 7\]"),
    "lengths of lists": (list(GREY), WORDS[:-1], {}, r"inconsistent numbers of samples: \[8, 7\]"),
    "no labels": (list(GREY), None, {}, "requires y to be passed"),
    "one class": (GREY, ["a"] * 8, {}, "Got only one class, "),
    "one of a class": (GREY, ["a"] * 7 + ["b"], {}, r"each class needs at least 2 images[\s\S]*'b' \(1\)"),
    "recipe": (GREY, WORDS, {"recipe": "scrach"}, r"no recipe has this name[\s\S]*scratch"),
    "model": (GREY, WORDS, {"model": "vit_tinny_patch16_224"}, "no model has this name"),
    "setting": (GREY, WORDS, {"settings": ("stepps=3",)}, "there is no setting 'stepps'"),
    "weights": (GREY, WORDS, {"weights": "nowhere.safetensors"}, "nowhere.safetensors"),
    "four channels": (np.zeros((8, 4, 4, 4), np.uint8), WORDS, {}, r"three channels. Got X of shape \(4, 4, 4\)"),
    "no rows": (np.zeros((8, 0, 4), np.uint8), WORDS, {}, r"Got X of shape \(0, 4\)"),
    "one of four": ([*GREY[:7], np.zeros((4, 4, 4))], WORDS, {}, r"Got X\[7\] of shape \(4, 4, 4\)"),
    "not finite": ([*GREY[:7], np.full((4, 4), np.nan)], WORDS, {}, r"Input X\[7\] contains NaN"),
    "mixed values": ([*GREY[:7], GREY[7] / 255.0], WORDS, {}, "cannot be mixed with other types"),
    "image_shape": (GREY.reshape(8, 16), WORDS, {"image_shape": (4, 5)}, "the 16 features of X"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_invalid_input(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images, labels, params, message = WRONG[case]
    estimator = clone(HASTY).set_params(**params)
    with pytest.raises(ValueError, match=message):
        estimator.fit(images, labels)
    with pytest.raises(NotFittedError):
        estimator.predict(GREY)


def test_a_bad_file_is_named(images: tuple[np.ndarray, np.ndarray], fitted: VitClassifier, tmp_path: Path) -> None:
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(ValueError, match=r"cut\.png is (damaged|not an image)"):
        fitted.predict([tmp_path / "cut.png"])
    with pytest.raises(ValueError, match=r"gone\.png does not exist"):
        fitted.predict([tmp_path / "gone.png"])
    paths = [*paths_of(images[0][:-1], tmp_path), tmp_path / "gone.png"]
    with pytest.raises(ValueError, match=r"gone\.png does not exist"):
        clone(HASTY).fit(paths, images[1])
