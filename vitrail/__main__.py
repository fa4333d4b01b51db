"""The command line: one command for each file of `vitrail/cli`, and one place where errors become exit codes."""

from __future__ import annotations

import sys
import traceback

import typer

from vitrail import __version__, plug
from vitrail.errors import VitrailError

COMMANDS = "vitrail.cli"


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
    try:
        build_app()()
    except VitrailError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception:  # noqa: BLE001 - the last resort, which tells whose fault it is
        traceback.print_exc()
        print("This is a fault of Vitrail's, not yours. Please report it with the lines above.", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
