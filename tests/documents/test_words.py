"""The private vocabulary of earlier versions is gone from names, messages, pages and documents."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = sorted(ROOT.glob("vitrail/**/*.py"))
PAGES = sorted(path for suffix in ("html", "js", "css", "yaml") for path in ROOT.glob(f"vitrail/**/*.{suffix}"))
DOCS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(path for path in sorted(ROOT.glob("docs/*.md")) if path.name != "renamed.md"),
]
# Each with the word that replaced it.
IN_NAMES = {
    "told": "a word for each of its five meanings",
    "picture": "image",
    "pictures": "images",
    "several": "multi_label",
    "crew": "worker_process",
    "hollow": "on_meta",
    "tired": "out_of_patience",
    "judge": "evaluate",
    "judged": "predictions",
    "looked": "scanned",
    "chance": "rng",
    "leads": "is_rank_zero",
    "agree": "broadcast_flag",
    "contest": "search",
    "faith": "fidelity",
    "album": "thumbnails",
    "drawn": "drawing",
    "tried": "candidate",
    "trial": "context",
}
IN_PROSE = {
    "told": "said, reported, shown",
    "picture": "image",
    "pictures": "images",
    "anew": "again",
    "surest": "most confident",
    "likeliest": "most likely",
    "crew": "worker",
    "hollow": "meta device",
    "judged": "evaluated",
    "leader": "rank 0",
}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# JSON keys that were published, and keys of earlier versions that are still read.
PUBLISHED = {"several", "looked", "asked", "chosen", "picture", "pictures", "tried", "told"}


def names_in(path: Path) -> set[str]:
    """The identifiers of a file."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def prose_in(path: Path) -> list[tuple[int, str]]:
    """The lines of a file, without published keys in quotes and the HTML element of that name."""
    lines = path.read_text(encoding="utf-8").splitlines()
    published = "|".join(PUBLISHED)
    keys = re.compile(rf"""["'`]({published})["'`]|\.({published})\b|\b({published}): \[|</?picture>""")
    return [(number, keys.sub("", line)) for number, line in enumerate(lines, 1)]


def test_the_words_are_looked_for_in_something() -> None:
    assert len(CODE) > 150
    assert len(PAGES) > 15
    assert len(DOCS) > 10
    assert "multi_label" in set().union(*map(names_in, CODE))


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_names(path: Path) -> None:
    parts = {(name, part) for name in names_in(path) for part in map(str.lower, WORD.findall(name))}
    found = {name: IN_NAMES[part] for name, part in parts if part in IN_NAMES and name not in PUBLISHED}
    assert not found, f"{path.name}: {found}"
    assert not WORD_IN_FILE_NAME.intersection(path.stem.split("_"))


WORD_IN_FILE_NAME = set(IN_NAMES) | {"kept", "made", "making", "opened", "live"}


@pytest.mark.parametrize("path", [*CODE, *PAGES, *DOCS], ids=lambda path: str(path.relative_to(ROOT)))
def test_prose(path: Path) -> None:
    pattern = re.compile(rf"\b({'|'.join(IN_PROSE)})\b", re.IGNORECASE)
    found = [
        f"line {number}: {match[0]}, say {IN_PROSE[match[0].lower()]}"
        for number, line in prose_in(path)
        for match in pattern.finditer(line)
    ]
    assert not found, f"{path.name}: {found}"


@pytest.mark.parametrize("path", [*CODE, *PAGES, *DOCS], ids=lambda path: str(path.relative_to(ROOT)))
def test_percentages_have_a_space(path: Path) -> None:
    """86.2 %, in messages as on pages; lengths of a style sheet are something else."""
    text = path.read_text(encoding="utf-8")
    formats = re.findall(r"\{[^{}\n]*:[^{}\n]*\.\d%\}", text) if path.suffix == ".py" else []
    prose = re.findall(r"\d%(?! *[;,)}\"]).*", text) if path.suffix == ".md" else []
    assert not formats + prose


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_models_have_a_type(path: Path) -> None:
    """A model is a Model, a Classifier, a VisionTransformer or an ExportedModel; mypy holds the code to it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    untyped = re.compile(r"(model|network|headless|rebuilt): Any\b|\bdef \w*(model|network)\w*\(.*\) -> Any\b")
    assert not [line for line in lines if untyped.search(line)]
