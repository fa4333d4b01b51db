"""Save a command's output as an SVG: python tools/terminal_screenshot.py docs/models.svg vitrail models deit."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def save_screenshot(path: Path, command: list[str]) -> None:
    """Run a command and write its output as an SVG of a terminal."""
    result = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    width = max(80, *(len(line) for line in lines))
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text("$ " + " ".join(command), style="bold green"))
    for line in lines:
        console.print(Text(line), highlight=False)
    console.save_svg(str(path), title="vitrail")


if __name__ == "__main__":
    save_screenshot(Path(sys.argv[1]), sys.argv[2:])
