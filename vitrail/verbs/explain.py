"""Explain predictions: a page and a figure for each image, clip or text."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.contract import Classifier
from vitrail.data.image_files import find_images
from vitrail.data.media import MODALITIES, modality_of
from vitrail.data.table import IMAGE
from vitrail.data.text.argument import PIPE, TextArgument, looks_like_path, read_argument
from vitrail.errors import DataError, InspectionError
from vitrail.files import atomic_write, write_text
from vitrail.inspection.adopt import adopt
from vitrail.inspection.clip_explanation import explain_clip
from vitrail.inspection.clip_patches import check_modality
from vitrail.inspection.drawing import save_figure
from vitrail.inspection.explanation import TOP, explain_image
from vitrail.inspection.reconstruction import open_pretrained
from vitrail.inspection.reconstruction_page import explain_reconstruction
from vitrail.inspection.text_explanation import PlacePrediction, explain_text
from vitrail.run.artefact import CLIPS, PRETRAINING, kind_of
from vitrail.run.open import open_model
from vitrail.run.predictor import input_preprocess
from vitrail.run.text_model import TEXT_KINDS, load_text_model

DPI = 160
MAX_STEM = 40  # characters of a text in the name of its page
MEDIA_SUFFIXES = tuple(MODALITIES)


class ExplainedImage(NamedTuple):
    """The prediction for one image and the files that explain it."""

    image: str
    page: Path
    still: Path
    classes: tuple[tuple[str, float], ...]
    """The explained classes and their probabilities; for regression, the predicted number; none if pretrained."""
    summary: str
    """The prediction in words."""


class ExplainedClip(NamedTuple):
    """The prediction for one sound or video and the files that explain it."""

    clip: str
    page: Path
    still: Path
    classes: tuple[tuple[str, float], ...]
    """The explained classes and their probabilities."""
    summary: str
    """The prediction in words."""


class ExplainedText(NamedTuple):
    """What a model of text predicts for one text, and the files that explain it."""

    text: str
    page: Path
    still: Path
    predictions: tuple[PlacePrediction, ...]
    """For the token after the text, or for each [MASK]; none for a translation."""
    translation: str | None
    summary: str
    """The prediction in words."""


def explain(
    model: str | Path,
    inputs: Sequence[str | Path],
    *,
    weights: str | Path | None = None,
    out: str | Path = "explained",
    classes: Sequence[str | int] | None = None,
    methods: Sequence[str] | None = None,
    top: int = TOP,
    to: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[ExplainedImage] | list[ExplainedClip] | list[ExplainedText]:
    """Write a page and a figure for each image into the folder `out`; for each clip or text, if the model is of those.

    Images and clips are files, folders, zips or patterns. For `classes`, `methods` and `top` see `vitrail.explain`.
    Texts are themselves, paths of text files, or - for standard input; `to` is the language that a translator
    translates to.
    """
    folder, words = Path(out), [os.fspath(each) for each in inputs]
    kind = kind_of(model) if weights is None else None
    if kind in TEXT_KINDS:
        given = [name for name, value in (("--class", classes), ("--method", methods)) if value]
        if given:
            raise InspectionError(
                f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for images and clips.",
                got=f"a run on text, of the kind {kind}.",
                hint="the command without.",
            )
        return _explain_texts(model, words, _check_folder(folder), top, to, progress)
    if to is not None:
        raise InspectionError("--to is for runs that translate.", got=f"--to {to}.", hint="the command without.")
    for word in words:
        if _is_text(word):
            raise DataError(
                f"this model explains {'clips' if kind == CLIPS else 'images'}, not text.",
                got=f"{word!r}.",
                hint="the path of a clip or a run on text."
                if kind == CLIPS
                else "the path of an image, or a run on text.",
            )
    if kind == PRETRAINING:
        if classes or methods:
            raise InspectionError(
                "a pretrained model has no classes to explain.",
                got="--class or --method.",
                hint="the command without: it shows reconstructions.",
            )
        return _explain_hidden(model, words, _check_folder(folder), progress)
    network = adopt(open_model(model, weights))
    options = {"classes": classes, "methods": methods, "top": top}
    explain_all = _explain_images if network.TAKES == IMAGE else _explain_clips
    return explain_all(network, words, _check_folder(folder), options, progress)


def _explain_hidden(
    run: str | Path, words: Sequence[str], folder: Path, progress: Callable[[int, int], None] | None
) -> list[ExplainedImage]:
    pretrained = open_pretrained(run)
    items = list(find_images(words))
    preprocess = pretrained.model.preprocess
    pages = []
    for item in items:  # before any is written
        pixels = preprocess.read(item.content(), name=item.name)
        pages.append(explain_reconstruction(pretrained, pixels, Path(item.name).name))
    written: list[ExplainedImage] = []
    for item, explanation in zip(items, pages, strict=True):
        page = _unique_page(folder, Path(item.name).stem, {each.page for each in written})
        written.append(ExplainedImage(item.name, page, _write(explanation, page), (), explanation.summary))
        if progress is not None:
            progress(len(written), len(items))
    return written


def _explain_images(
    network: Classifier,
    words: Sequence[str],
    folder: Path,
    options: Mapping[str, Any],
    progress: Callable[[int, int], None] | None,
) -> list[ExplainedImage]:
    items = list(find_images(words))
    for item in items:  # a bad image fails before anything is written
        if (modality := modality_of(item.name)) not in (None, "image"):
            raise DataError(
                f"this model explains images, not {modality}s.", got=f"{item.name}.", hint="the path of an image."
            )
        network.preprocess.decode(item.content(), name=item.name)
    written: list[ExplainedImage] = []
    for item in items:
        explanation = explain_image(network, item.content(), **options)
        explanation = replace(explanation, name=Path(item.name).name)
        page = _unique_page(folder, Path(item.name).stem, {each.page for each in written})
        still = _write(explanation, page)
        explained = tuple(zip(explanation.labels, explanation.probabilities, strict=True))
        label, score = explanation.prediction
        summary = f"{label}, {explanation.score_text(score)}"
        written.append(ExplainedImage(item.name, page, still, explained, summary))
        if progress is not None:
            progress(len(written), len(items))
    return written


def _explain_clips(
    network: Classifier,
    words: Sequence[str],
    folder: Path,
    options: Mapping[str, Any],
    progress: Callable[[int, int], None] | None,
) -> list[ExplainedClip]:
    preprocess = input_preprocess(network)
    items = list(find_images(words, modality=preprocess.modality))
    for item in items:  # a bad clip fails before anything is written
        check_modality(item.name, preprocess)
        preprocess.read(item.content(), name=item.name)
    written: list[ExplainedClip] = []
    for item in items:
        explanation = explain_clip(network, item.content(), name=item.name, **options)
        page = _unique_page(folder, Path(item.name).stem, {each.page for each in written})
        explained = tuple(zip(explanation.labels, explanation.probabilities, strict=True))
        written.append(ExplainedClip(item.name, page, _write(explanation, page), explained, explanation.summary))
        if progress is not None:
            progress(len(written), len(items))
    return written


def _explain_texts(
    run: str | Path,
    words: Sequence[str],
    folder: Path,
    top: int,
    to: str | None,
    progress: Callable[[int, int], None] | None,
) -> list[ExplainedText]:
    opened = load_text_model(run)
    for word in words:
        if looks_like_path(word, MEDIA_SUFFIXES):
            raise DataError(
                f"this run explains text, not {modality_of(word)}s.",
                got=f"{word}.",
                hint=f"a text in quotes, or a run on {modality_of(word)}s.",
            )
    texts = [_without_last_newline(read_argument(word), word) for word in words]
    explanations = [explain_text(opened, each.text, top=top, to=to) for each in texts]  # before anything is written
    written: list[ExplainedText] = []
    for text, explanation in zip(texts, explanations, strict=True):
        stem = Path(text.file).stem if text.file else re.sub(r"\W+", "-", text.text)[:MAX_STEM].strip("-") or "text"
        page = _unique_page(folder, stem, {each.page for each in written})
        still = _write(explanation, page)
        shown = explanation.predictions
        predictions = {"language": shown[-1:], "masked_language": shown}.get(opened.kind, ())
        written.append(ExplainedText(text.text, page, still, predictions, explanation.translation, explanation.summary))
        if progress is not None:
            progress(len(written), len(texts))
    return written


def _write(explanation: Any, page: Path) -> Path:
    """Write the page and the figure beside it; return the figure's path."""
    page.parent.mkdir(parents=True, exist_ok=True)
    still = page.with_suffix(".png")
    write_text(explanation.page(), page, InspectionError)
    with atomic_write(still, InspectionError) as part:
        save_figure(explanation.figure(), part, "png", DPI)
    return still


def _check_folder(folder: Path) -> Path:
    if folder.exists() and not folder.is_dir():
        raise InspectionError(f"{folder} is not a folder.", got="a file.", hint="another --out.")
    return folder


def _is_text(word: str) -> bool:
    """Whether a word is a text rather than a path: several words, of which no file has the name."""
    if len(word.split()) < 2 or word.lower().endswith(MEDIA_SUFFIXES):
        return False
    try:
        return not Path(word).exists()
    except (OSError, ValueError):  # too long for a path, or a null byte in it
        return True


def _without_last_newline(argument: TextArgument, word: str) -> TextArgument:
    """A file and a pipe end with a line break that is not meant."""
    if argument.file or word == PIPE:
        return argument._replace(text=argument.text.removesuffix("\n"))
    return argument


def _unique_page(folder: Path, stem: str, taken: set[Path]) -> Path:
    """A path for the page that no other input of this call has."""
    page, number = folder / f"{stem}.explained.html", 1
    while page in taken:
        number += 1
        page = folder / f"{stem}-{number}.explained.html"
    return page
