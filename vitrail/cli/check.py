"""`vitrail check`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from vitrail.console import DataDirOption, JsonFlag, QuietFlag, print_json, print_table, progress_bar
from vitrail.errors import shown

FINDINGS = 3  # the exit code that tells them from a clean set
SHOWN = 5  # of each kind


def command(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder, zip, table, array file, shards, or a known name.")
    ],
    data_dir: DataDirOption = None,
    sheet: Annotated[
        Path | None, typer.Option(help="An HTML page to write, with the pictures of the findings.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; one a core if not given.")] = None,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """What is wrong with this data: broken files, duplicates, leaks between splits, classes that do not fit.

    Changes no byte of it. Exit code 0 if nothing was found, 3 if something was.
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
        print_table(["split", "classes", "pictures"], rows)
        for note in report.notes:
            print(shown(f"Note: {note}."))
        for kind, num in Counter(finding.kind for finding in report.findings).items():
            print(f"\n{kind}: {num:,} ({KINDS[kind]})")
            found = [finding for finding in report.findings if finding.kind == kind]
            for finding in found[:SHOWN]:
                print("  " + shown(f"{finding.path}: {finding.detail}" if finding.path else finding.detail))
            if num > SHOWN:
                print(f"  and {num - SHOWN:,} more")
        files = "1 file" if report.files == 1 else f"{report.files:,} files"
        findings = "1 finding" if len(report.findings) == 1 else f"{len(report.findings):,} findings"
        print(f"\n{files} checked in {report.seconds:.1f} s, {findings}.")
        if sheet is not None:
            print(f"The findings with their pictures: {sheet}")
        elif report.findings:
            print("To see the pictures: add --sheet check.html. To have them all: --json.")
    if not report.ok:
        raise typer.Exit(FINDINGS)
