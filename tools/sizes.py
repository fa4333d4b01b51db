"""Refuse files past 400 lines and functions past 60, and report files past 300: each asks to be two."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

MAX_FILE = 400
NOTED_FILE = 300
MAX_FUNCTION = 60
MAX_BYTES = 1_000_000
ROOT = Path(__file__).parent.parent


def tracked() -> list[Path]:
    """The files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def complaints(path: Path) -> list[str]:
    """What is too large in one file."""
    name = path.relative_to(ROOT)
    found = []
    if path.stat().st_size > MAX_BYTES and path.suffix != ".png":
        found.append(f"{name}: {path.stat().st_size} bytes")
    if path.suffix != ".py":
        return found
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > MAX_FILE:
        found.append(f"{name}: {lines} lines")
    elif lines > NOTED_FILE:
        print(f"note: {name} has {lines} lines", file=sys.stderr)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                found.append(f"{name}: {node.name} has {length} lines")
    return found


if __name__ == "__main__":
    everything = [complaint for path in tracked() for complaint in complaints(path)]
    for complaint in everything:
        print(f"too large: {complaint}", file=sys.stderr)
    sys.exit(1 if everything else 0)
