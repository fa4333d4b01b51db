"""Reject files over 400 lines and functions over 60; report files over 300."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

MAX_FILE_LINES = 400
REPORTED_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_BYTES = 1_000_000
ROOT = Path(__file__).parent.parent


def list_files() -> list[Path]:
    """List the files that git tracks or would add."""
    result = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in result.stdout.splitlines() if (ROOT / line).is_file()]


def check(path: Path) -> list[str]:
    """Report what is too large in one file."""
    name = path.relative_to(ROOT)
    problems = []
    if path.stat().st_size > MAX_BYTES and path.suffix != ".png":
        problems.append(f"{name}: {path.stat().st_size} bytes")
    if path.suffix != ".py":
        return problems
    text = path.read_text(encoding="utf-8")
    num_lines = len(text.splitlines())
    if num_lines > MAX_FILE_LINES:
        problems.append(f"{name}: {num_lines} lines")
    elif num_lines > REPORTED_FILE_LINES:
        print(f"note: {name} has {num_lines} lines", file=sys.stderr)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                problems.append(f"{name}: {node.name} has {length} lines")
    return problems


if __name__ == "__main__":
    problems = [problem for path in list_files() for problem in check(path)]
    for problem in problems:
        print(f"too large: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)
