"""Which of these runs is better, and is it luck?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.report.comparison import Comparison, compare_runs


def compare(runs: Sequence[str | Path], *, page: str | Path = "compare.html") -> Comparison:
    """Put runs side by side, each against the first, and write a page about it.

    The directories of runs tell what each said to the pictures that it was judged on; those that two have in common are
    compared one by one, which tells more than two accuracies do.
    """
    return compare_runs([Path(run) for run in runs], Path(page))
