"""Search one modality by another: sounds for an image, images for a word."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail.data.aligned import TEXT, AlignedTable, open_aligned, read_part
from vitrail.data.image_files import find_images
from vitrail.data.media import MODALITIES
from vitrail.data.text.argument import looks_like_path, read_argument
from vitrail.data.text.corpus import TABLE_SUFFIXES, TEXT_SUFFIXES, read_text
from vitrail.errors import DataError
from vitrail.files import write_text
from vitrail.metric.retrieval import nearest
from vitrail.pages import check_page
from vitrail.report.search import render_search
from vitrail.run.aligned_model import AlignedModel, load_aligned

TOP = 10
CLIPS = ("sound", "video")  # named by their own files
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
    if out is not None:
        check_page(Path(out), DataError)
    query_modality, content = _read_query(os.fspath(query), opened)
    own_sample = opened.read(query_modality, content, os.fspath(query))
    chosen, candidates, total = _open_candidates(os.fspath(data), opened, modality, query_modality)
    level = opened.model.spec.level_between(query_modality, chosen)
    if query_modality == chosen:
        level = opened.model.spec.levels_of(chosen)[0]
    own = opened.embed(query_modality, [own_sample])[level]
    embeddings, kept, skipped = _embed_all(opened, chosen, level, candidates, total, progress)
    if not kept:
        raise DataError(f"no {chosen} could be read.", got=f"{skipped[0]}", hint="other data.")
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
    if not looks_like_path(query, tuple(MODALITIES)):
        opened.require(TEXT)
        return TEXT, read_argument(query).text.strip()
    if not Path(query).is_file():
        raise DataError(f"{query} does not exist.", got="a path without a file.", hint="the path of a file, or a text.")
    modality = MODALITIES[Path(query).suffix.lower()]
    opened.require(modality)
    return modality, next(find_images([query], modality=modality)).content()


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
        if modality not in (None, TEXT):
            raise DataError(f"{data} has nothing to search.", got=f"a text file, and --in {modality}.", hint="no --in.")
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
        if modality != TEXT:
            found = table.content(index).get(modality)
            name = str(found()) if found is not None and modality in CLIPS else table.names[index]
            yield Candidate(name, partial(read_part, table[index], modality))
            continue
        for text in table.texts(index):
            if text not in seen:
                seen.add(text)
                yield Candidate(text, lambda text=text: text)  # type: ignore[misc]


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
                samples.append(opened.read(modality, each.content(), each.name))
                kept.append(each)
            except DataError as error:
                skipped.append(f"{each.name}: {error.wrong.removeprefix(f'{each.name} ')} {error.got}".strip())
        if samples:
            parts.append(opened.embed(modality, samples)[level])
        if progress is not None:
            progress(len(kept) + len(skipped), total)
    return (torch.cat(parts) if parts else torch.zeros(0, 1)), kept, skipped
