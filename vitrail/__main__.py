"""The command line: one command for each file of `vitrail/cli`, and one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
import traceback
import warnings

import typer

from vitrail import __version__, plug
from vitrail.errors import VitrailError

COMMANDS = "vitrail.cli"
INTERRUPTED = 130
CLOSED_PIPE = 141  # as of `| head`, when nobody reads on: 128 and SIGPIPE, as with other tools


def build_app() -> typer.Typer:
    """The application, made from the folder of commands."""
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
        app.command(name)(plug.load(COMMANDS, name).command)
    return app


def main() -> None:
    """Run the command line: 0 done, 2 the user's input was wrong, 1 our fault, 130 interrupted."""
    # Pillow's remarks on large pictures and damaged EXIF; what matters of them becomes an error of ours.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    # OpenMP's threads spin while they wait for each other, by default for long. Where other programs want the cores
    # too, that makes training many times slower; a short spin costs nothing. torch reads it when it is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        code = build_app()(standalone_mode=False)
        sys.stdout.flush()  # a full disk or a closed pipe shows here, not in the interpreter's last breath
    except VitrailError as error:
        print(error, file=sys.stderr)
        code = 2
    except (KeyboardInterrupt, typer.Abort) as stop:
        # A run that was saved says so, and how to go on; Typer wraps it.
        said = str(stop) or str(stop.__cause__ or stop.__context__ or "")
        if said:
            print(said, file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        code = _give_up(CLOSED_PIPE)
    except SystemExit as stop:  # Typer's own answers: 130 to an interrupt, 1 to a closed pipe
        code = _give_up(CLOSED_PIPE) if isinstance(stop.__context__, BrokenPipeError) else stop.code
    except OSError as error:
        place = error.filename or "standard output"
        print(f"OSError: {place} cannot be read or written.\n  Got {error.strerror or error}.", file=sys.stderr)
        code = _give_up(2)
    except Exception as error:  # noqa: BLE001 - the last resort, which tells whose fault it is
        code = _usage(error)
    if code == INTERRUPTED:
        print("Interrupted.", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _give_up(code: int) -> int:
    """Forget what still waits to be printed, which would fail a second time, and noisily."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _usage(error: Exception) -> int:
    """A wrong word on the command line, which Typer explains itself; anything else is a fault of ours."""
    if hasattr(error, "show") and hasattr(error, "exit_code"):
        error.show()
        return int(error.exit_code)
    traceback.print_exception(error)
    print("This is a fault of Vitrail's, not yours. Please report it with the lines above.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
