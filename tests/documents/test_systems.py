"""docs/systems.md: every deck is there, every file stands, every command exists, and every figure has a source."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from typing import NamedTuple

import pytest
import typer

from tests.conftest import ROOT
from vitrail import catalogue, plug
from vitrail.__main__ import build_app
from vitrail.errors import VitrailError
from vitrail.percent import percent, percent_range

PAGE = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
REGISTRIES = {
    "--recipe": "vitrail.training.recipe",
    "--only": "vitrail.inspection.figure",
    "--method": "vitrail.inspection.method",
}
COMMANDS = typer.main.get_command(build_app()).commands
DECKS = {f"{number:03d}" for number in range(5)}


class System(NamedTuple):
    name: str
    decks: str
    files: str
    command: str
    measured: str


SYSTEMS = [
    System(*row)
    for row in re.findall(r"^\| ([^|]*\S) +\| (0[^|]*) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
]


def decks_of(system: System) -> set[str]:
    """`000, 002` or `000 to 003`."""
    numbers = [int(number) for number in re.findall(r"\d{3}", system.decks)]
    return {f"{number:03d}" for number in (range(numbers[0], numbers[1] + 1) if "to" in system.decks else numbers)}


def test_every_deck_is_there() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| system", "| ---"))]
    assert len(SYSTEMS) == len(rows) > 30
    assert {deck for system in SYSTEMS for deck in decks_of(system)} == DECKS


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_system(system: System) -> None:
    files = re.findall(r"`([\w/.]+)`", system.files)
    assert files
    for file in files:
        assert (ROOT / "vitrail" / file).is_file(), file
    check_command(system.command.strip("`"))
    assert "](" in system.measured or "not measured yet" in system.measured or "in the tests" in system.measured


def check_command(line: str) -> None:
    """Verb, options, what they name and the settings exist."""
    program, verb, *words = shlex.split(line)
    assert program == "vitrail"
    options = {name for each in COMMANDS[verb].params for name in each.opts}
    named = dict(itertools.pairwise(words))
    for word in words:
        assert not word.startswith("--") or word in options, word
    for option, package in REGISTRIES.items():
        if option in named:
            plug.load(package, named[option])
    models = [named["--model"]] if "--model" in named else words[:1] if verb in ("models", "figures") else []
    for model in models:
        catalogue.spec_named(model)
    if verb == "train":
        recipe = plug.load("vitrail.training.recipe", named["--recipe"])
        spec = recipe.spec(has_weights=True) if hasattr(recipe, "spec") else recipe.Spec
        settings = [word for word in words[1:] if "=" in word]
        spec().override_words([word for word in settings if not word.startswith("model.")])
        own = [word.removeprefix("model.") for word in settings if word.startswith("model.")]
        catalogue.spec_named(named.get("--model", "vit_tiny_patch16_224")).override_words(own)


@pytest.mark.parametrize(
    "line",
    [
        "vitrail teleport pets",
        "vitrail train pets --recipe alchemy",
        "vitrail train pets --recipe scratch --sideways",
        "vitrail train pets --recipe scratch --model vit_nonsense_16",
        "vitrail train pets --recipe scratch sam2=0.05",
        "vitrail train pets --recipe scratch model.attention=sideways",
        "vitrail figures deit_tiny_patch16_224 --only nothing",
    ],
)
def test_commands_that_do_not_exist(line: str) -> None:
    with pytest.raises((VitrailError, KeyError, AssertionError)):
        check_command(line)


def test_the_figures_of_transfer_are_those_of_its_json() -> None:
    document = json.loads((ROOT / "benchmarks" / "transfer.json").read_text(encoding="utf-8"))
    lines = (ROOT / "docs" / "transfer.md").read_text(encoding="utf-8").splitlines()
    titles = {row["name"]: row["title"] for row in document["rows"] if row["name"]}
    for data in document["data"]:
        line = next(line for line in lines if line.startswith(f"| {titles[data['name']]} |"))
        for score in data["scores"].values():
            assert f"| {percent(score['value'])} ({percent_range(score['interval']).removesuffix(' %')}) |" in line
    for score in document["means"][0]["scores"].values():
        assert percent(score[0]) in PAGE
