"""Which of these runs is better, and is the difference significant?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.report.comparison import Comparison, compare_runs


def compare(runs: Sequence[str | Path], *, page: str | Path = "compare.html") -> Comparison:
    """Compare each run with the first one, and write an HTML page.

    The runs' stored predictions are compared image by image, which has more power than comparing two accuracies.
    """
    return compare_runs([Path(run) for run in runs], Path(page))
