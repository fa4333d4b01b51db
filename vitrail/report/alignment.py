"""The report of a run that aligns modalities: recall in each direction, and what was found for some queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.aligned import TEXT, AlignedTable
from vitrail.errors import DataError, RunError
from vitrail.files import write_text
from vitrail.metric.retrieval import nearest
from vitrail.pages import render_template
from vitrail.report.percent import percent, percent_range
from vitrail.report.run import REPORT, read_files, training_charts
from vitrail.report.thumbnails import thumbnail
from vitrail.run.aligned_model import AlignedModel, load_aligned
from vitrail.run.artefact import ALIGNMENT

NUM_QUERIES, NUM_FOUND, SIDE = 6, 4, 112
MAX_POOL = 200  # samples that are searched for the page


def write_alignment_report(path: Path, source: AlignedTable) -> None:
    """Write report.html of a run; an existing page stays until the new one is complete."""
    run = read_files(path, kind=ALIGNMENT)
    opened = load_aligned(path)
    names = source.split_names
    table = source.split("test" if "test" in names else "val") if {"test", "val"} & set(names) else source
    assert isinstance(table, AlignedTable)
    page = render_template(
        "vitrail.report",
        "alignment.html",
        **run,
        charts=training_charts([("", run["metrics"])]),
        searches=_search(opened, table),
        percent=percent,
        percent_range=percent_range,
    )
    write_text(page, path / REPORT, RunError)


def _search(opened: AlignedModel, table: AlignedTable) -> list[dict[str, Any]]:
    """For a few samples, what each modality finds in each other one; unreadable samples are left out."""
    rows = [int(row) for row in np.unique(np.linspace(0, len(table) - 1, min(len(table), MAX_POOL)))]
    contents: dict[str, list[Any]] = {name: [] for name in opened.modalities}
    samples: dict[str, list[Any]] = {name: [] for name in opened.modalities}
    kept = []
    for row in rows:
        try:
            content = table.content(row)
            parts = {name: content[name][0] if name == TEXT else content[name] for name in opened.modalities}
            read = {name: opened.read(name, part, name=table.names[row]) for name, part in parts.items()}
        except (DataError, KeyError, IndexError, OSError):
            continue
        kept.append(row)
        for name, part in parts.items():
            contents[name].append(part)
            samples[name].append(read[name])
    if not kept:
        return []
    embeddings = {name: opened.embed(name, each) for name, each in samples.items()}
    searches = []
    spec = opened.model.spec
    chosen = np.unique(np.linspace(0, len(kept) - 1, NUM_QUERIES).astype(int))
    for one in opened.modalities:
        for other in opened.modalities:
            if one == other:
                continue
            level = spec.level_between(one, other)
            distinct = _distinct(contents[other]) if other == TEXT else list(range(len(kept)))
            found = nearest(embeddings[one][level][chosen], embeddings[other][level][distinct], NUM_FOUND)
            searches.append(
                {
                    "from": one,
                    "to": other,
                    "rows": [
                        (
                            _show(one, contents[one][query]),
                            [_show(other, contents[other][distinct[hit]]) for hit in hits.tolist()],
                        )
                        for query, hits in zip(chosen.tolist(), found.indices, strict=True)
                    ],
                }
            )
    return searches


def _distinct(texts: list[str]) -> list[int]:
    """The first row of each text."""
    first: dict[str, int] = {}
    for row, text in enumerate(texts):
        first.setdefault(text, row)
    return list(first.values())


def _show(modality: str, content: Any) -> tuple[str, str]:
    """A text, or the thumbnail of an image or clip."""
    return (content, "") if modality == TEXT else ("", thumbnail(content, SIDE, modality=modality))
