"""Search one modality by another: sounds for an image, images for a word."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail.data.aligned import TEXT, AlignedTable, open_aligned
from vitrail.data.image_files import find_images
from vitrail.data.media import modality_of
from vitrail.data.text.argument import read_argument
from vitrail.data.text.corpus import TABLE_SUFFIXES, TEXT_SUFFIXES, read_text
from vitrail.errors import DataError
from vitrail.files import write_text
from vitrail.metric.retrieval import nearest
from vitrail.report.search import render_search
from vitrail.run.aligned_model import AlignedModel, load_aligned

TOP = 10
BATCH_SIZE = 32
Progress = Callable[[int, int], None]


class Found(NamedTuple):
    """One item that was found."""

    name: str
    similarity: float
    """The cosine of the angle between the two embeddings."""
    content: Any


class Search(NamedTuple):
    """What was found for a query, the nearest first."""

    query: str
    query_modality: str
    modality: str
    """Of what was found."""
    found: tuple[Found, ...]
    num_searched: int
    skipped: tuple[str, ...]
    """Items that cannot be read, with the reason."""
    page: Path | None


class Candidate(NamedTuple):
    """An item to compare with the query; its content is read on demand."""

    name: str
    content: Callable[[], Any]


def search(
    run: str | Path,
    query: str | Path,
    data: str | Path,
    *,
    modality: str | None = None,
    top: int = TOP,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Search:
    """Find the items of a modality that are nearest to a query of any modality that the run aligns.

    `query` is the path of an image, a sound or a video, or a text. `data` is a folder, zip or pattern of files, a text
    file with a text per line, or a table with several columns; `modality` says which to search, by default the one that
    there is. `out` is a page to write.
    """
    opened = load_aligned(run)
    query_modality, content = _read_query(os.fspath(query), opened)
    chosen, candidates, total = _open_candidates(os.fspath(data), opened, modality, query_modality)
    level = opened.model.spec.level_between(query_modality, chosen)
    if query_modality == chosen:
        level = opened.model.spec.levels_of(chosen)[0]
    own = opened.embed(query_modality, [opened.read(query_modality, content, name=os.fspath(query))])[level]
    embeddings, kept, skipped = _embed_all(opened, chosen, level, candidates, total, progress)
    if not kept:
        raise DataError(f"no {chosen} could be read.", got=f"{len(skipped)} unreadable.", hint="vitrail check.")
    hits = nearest(own, embeddings, top)
    found = tuple(
        Found(kept[index].name, similarity, kept[index].content())
        for index, similarity in zip(hits.indices[0].tolist(), hits.similarities[0].tolist(), strict=True)
    )
    result = Search(os.fspath(query), query_modality, chosen, found, len(kept), tuple(skipped), None)
    if out is None:
        return result
    page = Path(out)
    write_text(render_search(result, content), page, DataError)
    return result._replace(page=page)


def _read_query(query: str, opened: AlignedModel) -> tuple[str, Any]:
    """The modality of a query and its content: a file by its suffix, or else a text."""
    modality = modality_of(query) if Path(query).is_file() else None
    if modality is None and modality_of(query) is not None and (os.sep in query or " " not in query.strip()):
        raise DataError(f"{query} does not exist.", got="a path without a file.", hint="the path of a file, or a text.")
    if modality is None:
        opened.require(TEXT)
        return TEXT, read_argument(query).text.strip()
    opened.require(modality)
    return modality, _file(query, modality)()


def _file(path: str, modality: str) -> Callable[[], Any]:
    return next(find_images([path], modality=modality)).content


def _open_candidates(
    data: str, opened: AlignedModel, modality: str | None, query_modality: str
) -> tuple[str, Iterator[Candidate], int]:
    """The modality to search, its items, and how many there are if that is known."""
    if modality is not None:
        opened.require(modality)
    suffix = Path(data).suffix.lower()
    if suffix in TABLE_SUFFIXES and Path(data).is_file():
        table = open_aligned(data)
        shared = [name for name in table.modalities if name in opened.modalities]
        chosen = modality or next((name for name in shared if name != query_modality), None)
        if chosen not in shared:
            raise DataError(
                f"{data} has nothing to search.", got=f"{' and '.join(table.modalities)}.", hint="another --in."
            )
        return chosen, _table_candidates(table, chosen), len(table)
    if suffix in TEXT_SUFFIXES and Path(data).is_file():
        opened.require(TEXT)
        lines = list(dict.fromkeys(line.strip() for line in read_text(Path(data)).splitlines() if line.strip()))
        return TEXT, (Candidate(line, lambda line=line: line) for line in lines), len(lines)  # type: ignore[misc]
    names = [modality] if modality else [name for name in opened.modalities if name not in (TEXT, query_modality)]
    names += [query_modality] if query_modality != TEXT and query_modality not in names and not modality else []
    for name in names:
        try:
            found = list(find_images([data], modality=name))
        except DataError as error:
            problem = error
            continue
        return name, (Candidate(each.name, each.content) for each in found), len(found)
    raise problem


def _table_candidates(table: AlignedTable, modality: str) -> Iterator[Candidate]:
    seen = set()
    for index in range(len(table)):
        name = table.names[index]
        if modality == TEXT:
            texts = table.content(index).get(TEXT, ())
            if texts and texts[0] not in seen:
                seen.add(texts[0])
                yield Candidate(texts[0], lambda text=texts[0]: text)  # type: ignore[misc]
            continue
        yield Candidate(name, lambda index=index: table.content(index)[modality])  # type: ignore[misc]


def _embed_all(
    opened: AlignedModel,
    modality: str,
    level: str,
    candidates: Iterator[Candidate],
    total: int,
    progress: Progress | None,
) -> tuple[torch.Tensor, list[Candidate], list[str]]:
    """The embeddings of all items that can be read, batch by batch."""
    parts, kept, skipped = [], [], []
    while batch := list(islice(candidates, BATCH_SIZE)):
        samples = []
        for each in batch:
            try:
                samples.append(opened.read(modality, each.content(), name=each.name))
            except (DataError, KeyError) as error:
                skipped.append(f"{each.name}: {error.wrong if isinstance(error, DataError) else f'no {modality}'}")
                continue
            kept.append(each)
        if samples:
            parts.append(opened.embed(modality, samples)[level])
        if progress is not None:
            progress(len(kept) + len(skipped), total)
    return (torch.cat(parts) if parts else torch.zeros(0, 1)), kept, skipped
