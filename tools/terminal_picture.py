"""A picture of what a command prints: python tools/terminal_picture.py docs/models.svg vitrail models deit."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def draw(path: Path, words: list[str]) -> None:
    """Run a command and write its output as an SVG of a terminal."""
    done = subprocess.run(words, capture_output=True, text=True, check=True)  # noqa: S603
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    width = max(80, *(len(line) for line in lines))
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text("$ " + " ".join(words), style="bold green"))
    for line in lines:
        console.print(Text(line), highlight=False)
    console.save_svg(str(path), title="vitrail")


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2:])
