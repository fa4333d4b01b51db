"""`vitrail demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, remark
from vitrail.progress import duration, progress_view

STORY = """Vitrail's demo: a small Vision Transformer learns to read handwriting, on this machine, in a minute.

1. The pictures. scikit-learn's 1,797 handwritten digits come along: 8 x 8 pixels, ten classes. Every fifth one is put
   aside for the test and never looked at until the end; a tenth of the others is held out to choose by.
2. The model. A few small convolutions, then each cell of 2 x 2 pixels is a token; two transformer blocks let the tokens
   look at each other; their mean tells the digit.
3. The training. Parts of the digits, resized, so that it never sees the same picture twice; Muon, a cosine schedule and
   a moving average of the weights. Ctrl-C saves and stops, the same command goes on.
"""
AFTER = """
Three things to try next:
  vitrail check DATA                         what is wrong with your pictures
  vitrail train DATA --minutes 10            the best model of them in ten minutes
  {judge:<42} what it sees in pictures, and how sure it is"""


def command(
    run: Annotated[Path, typer.Option(help="Where the run is kept.")] = Path("runs/demo"),
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """The whole story on data that comes along: train a small model on handwritten digits, and judge it."""
    from vitrail.verbs.demo import demo

    remark(STORY, quiet=quiet)
    with progress_view(quiet=quiet) as view:
        result = demo(run=run, view=view)
    if as_json:
        print_json(result._asdict())
        return
    assert result.test is not None
    wrong = round((1 - result.test["top1"]) * result.test["n"])
    print(
        f"4. The test. {result.test['top1']:.2%} of {result.test['n']} digits that it never saw are read right "
        f"({wrong} wrong), after {result.steps:,} steps in {duration(result.seconds)}."
    )
    low, high = result.test["interval"]
    print(f"   So few digits leave room for luck: the truth lies between {low:.1%} and {high:.1%} in 19 cases of 20.")
    print(f"5. The report. All about it, with the digits that were misread: {result.run / 'report.html'}")
    remark(AFTER.format(judge=f"vitrail predict {result.run} PICTURES"), quiet=quiet)
