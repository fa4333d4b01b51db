"""Console output of the commands: results on standard output, progress and remarks on standard error."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else on standard output.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress and notes.")]


ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run directory, a weight file, or a model name from the catalogue.")
]
WeightsOption = Annotated[
    str | None,
    typer.Option("--weights", help="Weights for a model name: a file, folder or Hugging Face Hub name."),
]
DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A folder, zip, table, array file or shards, or a built-in data set (digits, cifar10, ...).",
    ),
]
DataDirOption = Annotated[str | None, typer.Option("--data-dir", help="Folder to search first for built-in data sets.")]


def print_json(document: Any) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(document, indent=2, default=str, allow_nan=False))


def remark(text: str, *, quiet: bool) -> None:
    """Print a line on standard error."""
    if not quiet:
        print(text, file=sys.stderr)


def print_wrapped(text: str, *, file: TextIO | None = None) -> None:
    """Print lines of text; a terminal breaks them between words, and paths stay whole."""
    file = sys.stdout if file is None else file
    width = shutil.get_terminal_size().columns if file.isatty() else 0
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        print(
            textwrap.fill(line, width, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False)
            if width
            else line,
            file=file,
        )


def print_table(titles: list[str], rows: list[list[str]]) -> None:
    """Print a table: names in the first column, numbers in the others."""
    from rich.console import Console
    from rich.table import Table

    # A pipe has no width. A narrow terminal drops the last columns; no cell is truncated.
    console = Console(width=None if sys.stdout.isatty() else 1000)
    widths = [max(map(len, column)) + 2 for column in zip(titles, *rows, strict=True)]
    shown = max(1, sum(sum(widths[: index + 1]) - 2 <= console.width for index in range(len(widths))))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, title in enumerate(titles[:shown]):
        table.add_column(title, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row[:shown])
    console.print(table)


@contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback for (done, total): a bar with the time left on a terminal, elsewhere a line every 10 s."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        last = time.monotonic()

        def report(done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last > 10:
                last = time.monotonic()
                print(f"{label}: {done} of {total}", file=sys.stderr)

        yield report
