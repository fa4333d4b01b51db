"""`vitrail check`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import DataArgument, DataDirOption, JsonFlag, QuietFlag, print_json, print_table, progress_bar
from vitrail.errors import printable

EXIT_FINDINGS = 3  # exit code if anything was found
MAX_SHOWN = 5  # findings of each kind


def command(
    data: DataArgument,
    data_dir: DataDirOption = None,
    sheet: Annotated[Path | None, typer.Option(help="Write an HTML page with the images of the findings.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; by default one per core.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Find problems in a data set.

    Broken files, duplicates, leaks between splits, inconsistent classes.

    The data is never changed. Exit code 0 if nothing was found, 3 otherwise.
    """
    from vitrail.data.check import KINDS
    from vitrail.verbs.check import check

    with progress_bar("Checking", quiet=quiet) as progress:
        report = check(data, data_dir=data_dir, sheet=sheet, workers=workers, progress=progress)
    if as_json:
        print_json(
            {
                "files": report.files,
                "findings": [finding._asdict() for finding in report.findings],
                "ok": report.ok,
                "notes": report.notes,
                "counts": report.counts,
                "formats": report.formats,
                "seconds": round(report.seconds, 3),
            }
        )
    else:
        rows = [
            [split or "all", f"{len(classes):,}", f"{sum(classes.values()):,}"]
            for split, classes in report.counts.items()
        ]
        print_table(["split", "classes", report.noun], rows)
        for note in report.notes:
            print(printable(f"Note: {note}."))
        for kind, num in Counter(finding.kind for finding in report.findings).items():
            print(f"\n{kind}: {num:,} ({KINDS[kind]})")
            found = [finding for finding in report.findings if finding.kind == kind]
            for finding in found[:MAX_SHOWN]:
                print("  " + printable(f"{finding.path}: {finding.detail}" if finding.path else finding.detail))
            if num > MAX_SHOWN:
                print(f"  and {num - MAX_SHOWN:,} more")
        files = "1 file" if report.files == 1 else f"{report.files:,} files"
        findings = "1 finding" if len(report.findings) == 1 else f"{len(report.findings):,} findings"
        print(f"\n{files} checked in {report.seconds:.1f} s, {findings}.")
        if sheet is not None:
            print(f"Findings with their images: {sheet}")
        elif report.findings:
            print("Add --sheet check.html to see the images, or --json to list all findings.")
    if not report.ok:
        raise typer.Exit(EXIT_FINDINGS)
