"""`vitrail demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import JsonFlag, QuietFlag, print_json, remark
from vitrail.percent import percent, percent_range
from vitrail.progress import duration, progress_view

INTRO = """Vitrail's demo: a small Vision Transformer learns to read handwritten digits on this machine in a minute.

1. The data. scikit-learn's 1,797 handwritten digits are included: 8 x 8 pixels, ten classes. Every fifth one is
   reserved for the final test; a tenth of the others is held out for validation.
2. The model. A few small convolutions turn each cell of 2 x 2 pixels into a token; two transformer blocks let the
   tokens attend to each other; their mean is classified.
3. The training. Random resized crops, so that it never sees the same image twice; Muon, a cosine schedule and a moving
   average of the weights. Ctrl-C saves and stops; the same command resumes.
"""
AFTER = """
Three things to try next:
  vitrail check DATA                         find problems in your images
  vitrail train DATA --minutes 10            train the best model it can in ten minutes
  {predict:<42} predict images, with confidence"""


def command(
    run: Annotated[Path, typer.Option(help="The run directory.")] = Path("runs/demo"),
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Train and test a small model on included data."""
    from vitrail.verbs.demo import demo

    remark(INTRO, quiet=quiet)
    with progress_view(quiet=quiet) as view:
        result = demo(run=run, view=view)
    if as_json:
        print_json(result._asdict())
        return
    assert result.test is not None
    wrong = round((1 - result.test["top1"]) * result.test["n"])
    print(
        f"4. The test. {percent(result.test['top1'], 2)} of {result.test['n']} unseen digits were classified correctly "
        f"({wrong} wrong), after {result.steps:,} steps in {duration(result.seconds)}."
    )
    low, high = result.test["interval"]
    print(f"   95 % interval: {percent_range((low, high))}.")
    print(f"5. The report, with the misclassified digits: {result.run / 'report.html'}")
    remark(AFTER.format(predict=f"vitrail predict {result.run} IMAGES"), quiet=quiet)
