"""The command line: one command per file in `vitrail/cli`, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from typing import Any

import typer
from typer.core import TyperCommand

from vitrail import __version__, plug
from vitrail.console import print_wrapped
from vitrail.errors import VitrailError

COMMANDS = "vitrail.cli"
INTERRUPTED = 130
CLOSED_PIPE = 141  # the reader left, as with `| head`: 128 + SIGPIPE, like other tools
VALUES = {"str": "TEXT", "list[str]": "TEXT", "path": "PATH", **dict.fromkeys(("int", "float"), "N")}


class PlainCommand(TyperCommand):
    """A command whose help names values as other tools do: DATA, N and PATH, not {DATA}, <int range> and <path>."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line."""
        return [re.sub(r"\{(.*?)(?:\.\.\.)?\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            params = [each for each in self.get_params(ctx) if each.param_type_name == kind]
            records = [record for record in (each.get_help_record(ctx) for each in params) if record is not None]
            rows = [
                (_name_value(name) if kind == "option" else name.partition(" <")[0], text) for name, text in records
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _name_value(option: str) -> str:
    """An option as the help shows it, with a plain name for its value."""
    return re.sub(r"<(.*)>", lambda match: VALUES.get(match[1].removesuffix(" range"), match[1]), option)


def build_app() -> typer.Typer:
    """Build the application from the folder of commands."""
    app = typer.Typer(
        help="Vitrail, the workbench for Vision Transformers.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def main(version: bool = typer.Option(False, "--version", help="Show the version.", is_eager=True)) -> None:
        if version:
            typer.echo(f"vitrail {__version__}")
            raise typer.Exit

    for name in plug.entries(COMMANDS):
        app.command(name, cls=PlainCommand)(plug.load(COMMANDS, name).command)
    return app


def main() -> None:
    """Run the command line. Exit codes: 0 success, 1 bug in Vitrail, 2 invalid input, 130 interrupted."""
    # Pillow warns about large images and damaged EXIF; we raise our own errors for what matters.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    # By default, OpenMP threads spin for a long time while they wait for each other. When other programs use the
    # same cores, that makes training many times slower; a short spin costs nothing. torch reads this on import.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        code = build_app()(standalone_mode=False)
        sys.stdout.flush()  # so that a full disk or a closed pipe fails here, not at interpreter shutdown
    except VitrailError as error:
        print_wrapped(str(error), file=sys.stderr)
        code = 2
    except (KeyboardInterrupt, typer.Abort) as stop:
        # An interrupted run says where it was saved and how to resume; Typer wraps that exception.
        message = str(stop) or str(stop.__cause__ or stop.__context__ or "")
        if message:
            print(message, file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        code = _discard_output(CLOSED_PIPE)
    except SystemExit as stop:  # Typer exits with 130 on an interrupt and with 1 on a closed pipe
        code = _discard_output(CLOSED_PIPE) if isinstance(stop.__context__, BrokenPipeError) else stop.code
    except OSError as error:
        place = error.filename or "standard output"
        print(f"OSError: {place} cannot be read or written.\n  Got {error.strerror or error}.", file=sys.stderr)
        code = _discard_output(2)
    except Exception as error:  # noqa: BLE001 - the last resort: a usage error, or a bug
        code = _report(error)
    if code == INTERRUPTED:
        print("Interrupted.", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _discard_output(code: int) -> int:
    """Drop buffered output, which would fail again, noisily, at shutdown; return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _report(error: Exception) -> int:
    """Let Typer explain a usage error; anything else is a bug in Vitrail. Return the exit code."""
    if hasattr(error, "show") and hasattr(error, "exit_code"):
        error.show()
        return int(error.exit_code)
    traceback.print_exception(error)
    print("This is a bug in Vitrail. Please report it with the lines above.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
