"""Show how an input is cut into tokens: a text by a tokenizer, an image, a sound or a video by a model."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args

from vitrail.data.table import SOUND_SUFFIXES, SUFFIXES, VIDEO_SUFFIXES
from vitrail.data.text.argument import TextArgument, looks_like_path, read_argument
from vitrail.data.text.display import TokenSpan, token_spans
from vitrail.data.text.tokenizer import FILE, Tokenizer, TokenizerKind, learn_tokenizer, read_tokenizer
from vitrail.errors import DataError, InspectionError, RunError, SpecError, unknown_name
from vitrail.files import write_text
from vitrail.inspection.tokens_page import render_patches, render_text

MODELS = {
    "image": "vit_base_patch16_224",
    "sound": "vit_nano_patch80_sound8000",
    "video": "vit_nano_patch2x8_gap_video8x64",
}
"""What cuts an input, unless somebody chooses."""
CL100K_CACHE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # by tiktoken, the SHA-1 of the address of its ranks
MAX_NAME = 60  # characters of a text in its page's title


class TextTokens(NamedTuple):
    """A text cut into tokens."""

    tokenizer: str
    tokens: tuple[TokenSpan, ...]
    num_characters: int
    """As Python counts: code points."""
    num_utf16_units: int
    """As web pages count: two for most emojis."""
    by_default: bool
    """Whether nobody chose the tokenizer."""
    page: Path | None


class ImageTokens(NamedTuple):
    """An image cut into tokens."""

    patches: Any
    """A `Patches`: the grid, and the image at the model's size."""
    page: Path | None


class ClipTokens(NamedTuple):
    """A sound or a video cut into tokens."""

    patches: Any
    """A `ClipPatches`: the grid, and the part of the clip that the model takes."""
    page: Path | None


def tokens(
    source: str | Path,
    *,
    tokenizer: str | None = None,
    run: str | Path | None = None,
    model: str | None = None,
    out: str | Path | None = None,
) -> TextTokens | ImageTokens | ClipTokens:
    """Cut a text, an image, a sound or a video into tokens, and write a page to `out`, if given.

    `source` is a text, the path of a text file, an image or a clip, or - for a text on standard input. A text is cut
    by a `tokenizer` or that of a `run`; without either by cl100k if its vocabulary is on this machine, else into
    characters. An image or a clip is cut by a `model` of the catalogue or that of a `run`.
    """
    word = os.fspath(source)
    modality = _modality_of(word)
    _check_options(tokenizer, run, model, modality)
    if modality is not None:
        cut = _cut_image if modality == "image" else _cut_clip
        return cut(word, str(run or model or MODELS[modality]), out)
    text = read_argument(word)
    if not text.text:
        raise DataError("there is no text to cut.", got="an empty text.", hint="a sentence.")
    chosen, name = _find_tokenizer(text, tokenizer, run)
    spans = tuple(token_spans(chosen, text.text))
    num_units = len(text.text.encode("utf-16-le")) // 2
    page = None
    if out is not None:
        title = text.file or " ".join(text.text[: 2 * MAX_NAME].split()) or "spaces"
        title = title if len(title) <= MAX_NAME else title[: MAX_NAME - 1] + "…"
        content = render_text(
            spans, tokenizer=name, num_characters=len(text.text), num_utf16_units=num_units, name=title
        )
        page = _write_page(content, out)
    return TextTokens(name, spans, len(text.text), num_units, tokenizer is None and run is None, page)


def _modality_of(word: str) -> str | None:
    """`image`, `sound` or `video`, by a path's suffix; None for a text."""
    suffixes = {"image": SUFFIXES, "sound": SOUND_SUFFIXES, "video": VIDEO_SUFFIXES}
    return next((modality for modality, each in suffixes.items() if looks_like_path(word, each)), None)


def _check_options(tokenizer: str | None, run: str | Path | None, model: str | None, modality: str | None) -> None:
    """Refuse options that contradict each other or the input."""
    given = [name for name, value in (("--tokenizer", tokenizer), ("--model", model), ("--run", run)) if value]
    if len(given) > 1:
        raise SpecError(f"{' and '.join(given)} exclude each other.", got="both.", hint=f"{given[-1]} alone.")
    if modality is not None and tokenizer is not None:
        got = "an image." if modality == "image" else f"a {modality}."
        raise SpecError("--tokenizer is for text.", got=got, hint="--model.")
    if modality is None and model is not None:
        raise SpecError("--model is for images, sounds and videos.", got="a text.", hint="--tokenizer or --run.")
    kinds = get_args(TokenizerKind)
    if tokenizer is not None and tokenizer not in kinds:
        raise unknown_name("tokenizer", tokenizer, kinds)


def _find_tokenizer(text: TextArgument, kind: str | None, run: str | Path | None) -> tuple[Tokenizer, str]:
    """The tokenizer for a text, and what it is called."""
    if run is not None:
        return _tokenizer_of(Path(run))
    if kind is None:
        kind = "cl100k" if has_cl100k() else "characters"
    if kind == "cl100k":
        return learn_tokenizer("cl100k", []), "cl100k, the vocabulary of GPT-4"
    if kind == "characters":
        return learn_tokenizer("characters", [text.text]), "characters, numbered in this text"
    if text.file is None:
        raise SpecError(
            f"{kind} are learned from a text, and this one is too short.",
            got="a text on the command line.",
            hint="--run with a run on text, or the path of a .txt file.",
        )
    assert kind in ("subwords", "words")
    return learn_tokenizer(kind, [text.text]), f"{kind}, learned from this text"  # type: ignore[arg-type]


def _tokenizer_of(run: Path) -> tuple[Tokenizer, str]:
    if not (run / FILE).is_file():
        raise RunError(
            f"{run} has no tokenizer.", got=f"no {FILE} in it.", hint="a run on text, or --tokenizer characters."
        )
    return read_tokenizer(run / FILE), f"the tokenizer of {run}"


def has_cl100k() -> bool:
    """Whether tiktoken is installed and has its vocabulary in its cache; nothing is downloaded."""
    if find_spec("tiktoken") is None:
        return False
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        folder = str(Path(tempfile.gettempdir()) / "data-gym-cache")
    return bool(folder) and (Path(folder) / CL100K_CACHE).is_file()


def _cut_image(image: str, model: str, out: str | Path | None) -> ImageTokens:
    from vitrail.inspection.patches import cut_image  # imports torch, which texts do not need

    patches = cut_image(image, model)
    return ImageTokens(patches, None if out is None else _write_page(render_patches(patches), out))


def _cut_clip(clip: str, model: str, out: str | Path | None) -> ClipTokens:
    from vitrail.inspection.clip_patches import cut_clip
    from vitrail.inspection.clip_patches_page import render_clip

    patches = cut_clip(clip, model)
    return ClipTokens(patches, None if out is None else _write_page(render_clip(patches), out))


def _write_page(content: str, out: str | Path) -> Path:
    page = Path(out)
    if page.is_dir():
        raise InspectionError(f"{page} is a folder.", got="a folder.", hint=f"{page / 'tokens.html'}.")
    write_text(content, page, InspectionError)
    return page
