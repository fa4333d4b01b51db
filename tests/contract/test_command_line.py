"""What all commands have in common."""

from __future__ import annotations

import inspect
import io
import re
import sys

import pytest
from typer.testing import CliRunner

from vitrail import plug
from vitrail.__main__ import build_app
from vitrail.console import print_wrapped


@pytest.mark.parametrize("verb", plug.entries("vitrail.cli"))
def test_a_verb_has_the_same_defaults_in_python(verb: str) -> None:
    """The command line repeats the defaults, because showing help must not import a verb."""
    in_cli = inspect.signature(plug.import_from(f"vitrail.cli.{verb}", "command")).parameters
    in_python = inspect.signature(plug.import_from(f"vitrail.verbs.{verb}", verb)).parameters
    for name in in_cli.keys() & in_python.keys():
        shown, used = in_cli[name].default, in_python[name].default
        used = round(used * 1000) if (verb, name) == ("serve", "latency") else used  # milliseconds and seconds
        used = ",".join(used) if used and isinstance(used, tuple) else used  # as a list is written there
        assert str(shown) == str(used) or (shown, used) == (None, ()), name


def test_a_narrow_terminal_drops_columns_not_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from vitrail.console import print_table

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    print_table(["name", "params", "GFLOPs"], [["vit_base", "86.6 M", "35.1"]])
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert [line.split() for line in lines] == [["name", "params"], ["vit_base", "86.6", "M"]]


def test_a_terminal_breaks_lines_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    text = "RunError: there is no run here.\n  Got /a/path-that/is-longer/than-the/width."
    monkeypatch.setenv("COLUMNS", "20")
    terminal, pipe = Terminal(), io.StringIO()
    for file in (terminal, pipe):
        print_wrapped(text, file=file)
    wrapped = ["RunError: there is", "  no run here.", "  Got", "    /a/path-that/is-longer/than-the/width."]
    assert terminal.getvalue().splitlines() == wrapped
    assert pipe.getvalue() == f"{text}\n"


def test_an_interrupt_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    from vitrail import __main__ as entry
    from vitrail.verbs import models

    def interrupted(pattern: str, settings: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "models", interrupted)
    monkeypatch.setattr(sys, "argv", ["vitrail", "models"])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def test_no_folder_hides_a_public_name() -> None:
    """Importing a submodule sets it on its package, over a function of the same name."""
    import pkgutil

    import vitrail

    assert not {found.name for found in pkgutil.iter_modules(vitrail.__path__)} & set(vitrail.__all__)


@pytest.mark.parametrize("verb", plug.entries("vitrail.cli"))
def test_help_reads_plainly(verb: str) -> None:
    """Names of values as in other tools: DATA, N and PATH, not {DATA}, <int range> and <list[str]>."""
    shown = CliRunner().invoke(build_app(), [verb, "--help"]).stdout
    assert shown.startswith("Usage: ")
    assert not re.search(r"[{}]|<[a-z]", shown), shown


def test_help_of_arguments_and_options() -> None:
    shown = CliRunner().invoke(build_app(), ["explain", "--help"]).stdout
    assert re.search(r"explain \[OPTIONS\] MODEL INPUT\.\.\.\n", shown)
    for line in (
        r"INPUT\.\.\. +Images, folders",
        "--top N +How many",
        "--out PATH +The folder",
        "--class TEXT +A class",
    ):
        assert re.search(rf"^  {line}", shown, flags=re.MULTILINE), line
