"""Batches from a source: seeded, resumable from a step number, the same for any number of workers and ranks.

Workers are threads: decoding and resizing release the GIL, nothing is copied between processes, and there are no
processes to start or to clean up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.batch import Batch, Fields
from vitrail.data.preparation import Preparation
from vitrail.data.rng import epoch_order, group_lengths, make_rng, times_before
from vitrail.data.table import Finding, Item, Source, Stream, Table
from vitrail.errors import DataError
from vitrail.machine import num_cores

Policy = Literal["error", "skip"]
PREFETCH = 2  # batches prepared ahead
SHUFFLE_BUFFER = 1000  # items of a stream from which the next one is sampled


SKIP_HINT = "Or skip unreadable images: on_error=skip for train, --on-error skip for evaluate."


class Sample(NamedTuple):
    """One item of a batch, and how often it was shown before in this epoch."""

    item: Item
    repeat: int


@dataclass(kw_only=True)
class Loader:
    """Batches of a source, epoch after epoch.

    `batch_size` counts the samples of all ranks together; each rank gets its part of every batch.
    """

    source: Source
    prepare: Preparation
    batch_size: int
    seed: int = 0
    shuffle: bool = False
    balanced: bool = False
    drop_last: bool = False
    rank: int = 0
    world: int = 1
    workers: int | None = None
    """Decoding threads; 0 for none, None for one per core."""
    policy: Policy = "error"
    """What to do with an unreadable item: raise an error, or skip it and list it in `skipped`."""
    skipped: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        step = self.world * self.prepare.group
        if self.batch_size < 1 or self.batch_size % step:
            raise DataError(
                f"the batch size must be a multiple of {step}.",
                got=f"{self.batch_size} for {self.world} ranks{', mixed in pairs' if self.prepare.group > 1 else ''}.",
                hint=f"{max(1, round(self.batch_size / step)) * step}.",
            )
        if self.balanced and not self.shuffle:
            raise DataError("balanced sampling needs shuffling.", got="shuffle=False.", hint="shuffle=True.")
        if self.balanced and (isinstance(self.source, Stream) or self.source.multi_label or not self.source.classes):
            raise DataError(
                "balanced sampling needs one label per item and random access.",
                got="shards, multi-label data, or data without classes.",
                hint="leaving out balanced.",
            )
        self.read = self.prepare.reader(self.source)
        self.lengths = self.prepare.lengths(self.source)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        num = len(self.source)
        return num // self.batch_size if self.drop_last else -(-num // self.batch_size)

    def epoch(self, epoch: int = 0) -> Iterator[Batch]:
        """The batches of one epoch."""
        return self.batches(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)

    def typical_batch(self) -> Batch:
        """A batch to measure with: the first or, if lengths differ, one of median length."""
        longest = self._longest_by_batch()
        first = int(np.argsort(longest, kind="stable")[len(longest) // 2]) if len(longest) else 0
        batches = self.batches(first)
        batch = next(batches)
        batches.close()  # type: ignore[attr-defined]
        return batch

    @property
    def longest_ratio(self) -> float:
        """How many times as long as the typical batch the longest one is."""
        longest = self._longest_by_batch()
        return float(max(longest) / np.median(longest)) if len(longest) else 1.0

    def _longest_by_batch(self) -> list[int]:
        """The length of the longest sample of each batch of the first epoch; empty if all have the same."""
        if self.lengths is None or isinstance(self.source, Stream):
            return []
        ordered, size = self.lengths[self._order(self.source, 0)[0]], self.batch_size
        return [int(ordered[step * size : (step + 1) * size].max()) for step in range(self.steps_per_epoch)]

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """The batches of the steps from `start` to `stop`, counted over all epochs; endless without `stop`."""
        if not self.steps_per_epoch:
            raise DataError(
                "the data does not fill a single batch.",
                got=f"{len(self.source)} samples, {self.batch_size} per batch.",
                hint="a smaller batch size.",
            )
        workers = num_cores() if self.workers is None else self.workers
        pool = ThreadPoolExecutor(workers, thread_name_prefix="vitrail-loader") if workers else None
        pending: deque[_PendingBatch] = deque()
        try:
            plan = self._plan(start, stop)
            problem = None
            while problem is None:
                try:
                    epoch, position, samples = next(plan)
                except StopIteration:
                    break
                except DataError as error:  # a damaged shard: first yield the batches before it
                    problem = error
                    continue
                pending.append(_PendingBatch(self, epoch, position, samples, pool, workers))
                if pool is None or len(pending) > PREFETCH:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
            if problem is not None:
                raise problem
        finally:
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
            self.prepare.flush()

    def _plan(self, start: int, stop: int | None) -> Iterator[tuple[int, int, list[Sample]]]:
        """For each step: the epoch, the position of the first sample in it, and the samples of this rank."""
        step = start
        while stop is None or step < stop:
            epoch, first = divmod(step, self.steps_per_epoch)
            last = self.steps_per_epoch if stop is None else min(self.steps_per_epoch, first + stop - step)
            for number, samples in enumerate(self._epoch_samples(epoch, first, last), start=first):
                begin, end = (len(samples) * rank // self.world for rank in (self.rank, self.rank + 1))
                group = self.prepare.group
                if group > 1:  # a group stays on one rank, even in an incomplete batch
                    begin, end = begin + -begin % group, min(len(samples), end + -end % group)
                yield epoch, number * self.batch_size + begin, samples[begin:end]
            step += last - first

    def _epoch_samples(self, epoch: int, first: int, last: int) -> Iterator[list[Sample]]:
        """The samples of batches `first` to `last` of an epoch, for all ranks."""
        size = self.batch_size
        if isinstance(self.source, Stream):
            yield from self._stream_samples(self.source, epoch, first, last)
            return
        order, repeats = self._order(self.source, epoch)
        for step in range(first, last):
            positions = slice(step * size, (step + 1) * size)
            pairs = zip(order[positions].tolist(), repeats[positions].tolist(), strict=True)
            yield [Sample(self.source[index], repeat) for index, repeat in pairs]

    def _order(self, source: Table, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The order of the samples in an epoch, and for each how often it occurred before in this epoch."""
        order, repeats = epoch_order(
            len(source),
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            repeats=self.prepare.repeats,
            balance=source.labels if self.balanced else None,
        )
        if self.lengths is None:
            return order, repeats
        order = group_lengths(order, self.lengths, self.batch_size, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
        return order, times_before(order)

    def _stream_samples(self, source: Stream, epoch: int, first: int, last: int) -> Iterator[list[Sample]]:
        """Shards in random order, items through a shuffle buffer; those before batch `first` are skipped."""
        samples: list[Sample] = []
        skip = first * self.batch_size
        rng = make_rng("order", seed=self.seed, epoch=epoch)
        shards = [source.chosen[number] for number in rng.permutation(len(source.chosen))]
        items = _shuffle(source.in_order(shards), rng) if self.shuffle else iter(source)
        repeats = self.prepare.repeats if self.shuffle else 1
        positions = range(len(source))  # the epoch keeps its length, whatever the repeats
        shown = ((item, repeat) for item in items for repeat in range(repeats))
        for position, (item, repeat) in zip(positions, shown, strict=False):
            if position < skip:
                continue
            samples.append(Sample(item, repeat))
            if len(samples) == self.batch_size:
                yield samples
                first, samples = first + 1, []
                if first == last:
                    return
        if samples and not self.drop_last:
            yield samples


def _shuffle(items: Iterator[Item], rng: np.random.Generator) -> Iterator[Item]:
    """Each item sampled from a buffer; the next one of the stream takes its slot."""
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < SHUFFLE_BUFFER:
            buffer.append(item)
            continue
        slot = int(rng.integers(SHUFFLE_BUFFER))
        yield buffer[slot]
        buffer[slot] = item
    for slot in rng.permutation(len(buffer)).tolist():
        yield buffer[slot]


class _PendingBatch:
    """A batch in preparation: each task fills a few rows."""

    def __init__(
        self,
        loader: Loader,
        epoch: int,
        position: int,
        samples: Sequence[Sample],
        pool: ThreadPoolExecutor | None,
        workers: int,
    ) -> None:
        self.loader, self.samples = loader, samples
        self.epoch, self.position = epoch, position
        self.rows = loader.prepare.new_rows(len(samples))
        self.problems: list[Finding | None] = [None] * len(samples)
        size = -(-len(samples) // max(1, 2 * workers)) or 1
        starts = range(0, len(samples), size)
        self.tasks: list[Future[None]] = []
        if pool is None:
            self._prepare(0, len(samples))
        else:
            self.tasks = [pool.submit(self._prepare, start, min(start + size, len(samples))) for start in starts]

    def _prepare(self, start: int, stop: int) -> None:
        loader, prepare = self.loader, self.loader.prepare
        for row in range(start, stop):
            item, repeat = self.samples[row]
            try:
                sample: Any = loader.read(item)
                if prepare.varies:
                    epoch = self.epoch % prepare.draws if prepare.draws else self.epoch
                    rng = make_rng("pixels", seed=loader.seed, epoch=epoch, index=item.index, repeat=repeat)
                    sample = prepare.vary(sample, rng)
            except DataError as error:
                if loader.policy == "error":
                    raise DataError(
                        error.wrong, got=error.got, hint=f"{error.hint or 'a fresh copy.'} {SKIP_HINT}"
                    ) from None
                self.problems[row] = Finding(item.name, "skipped", f"{error.wrong} {error.got}".strip())
                continue
            self.rows.put(row, sample)

    def result(self) -> Batch:
        """The batch, once all of its tasks are done."""
        for task in self.tasks:
            task.result()
        loader, samples = self.loader, list(self.samples)
        good = [row for row, problem in enumerate(self.problems) if problem is None]
        if len(good) < len(samples):
            listed = {finding.path for finding in loader.skipped}
            loader.skipped.extend(each for each in self.problems if each is not None and each.path not in listed)
            samples = [samples[row] for row in good]
        fields = self.rows.stack(None if len(good) == len(self.samples) else good)
        items = [sample.item for sample in samples]
        fields |= stack_labels(items, loader.source)
        if loader.prepare.group > 1:
            fields = loader.prepare.mix(
                fields,
                num_classes=len(loader.source.classes),
                multi_label=loader.source.multi_label,
                seed=loader.seed,
                epoch=self.epoch,
                positions=[self.position + row for row in good],
            )
        indices = torch.tensor([item.index for item in items], dtype=torch.int64)
        return Batch(fields, indices, tuple(item.name for item in items))


def stack_labels(items: Sequence[Item], source: Source) -> Fields:
    """Class numbers, multi-hot targets for multi-label data, numbers for regression; nothing for unlabelled data."""
    if source.values is not None:
        return {"label": torch.tensor([item.value for item in items], dtype=torch.float64)}
    if not source.classes:
        return {}
    if isinstance(source, Table) and source.targets is not None:
        return {"label": torch.from_numpy(source.targets[[item.index for item in items]])}
    if not source.multi_label:
        return {"label": torch.tensor([label for item in items for label in item.labels], dtype=torch.int64)}
    targets = torch.zeros(len(items), len(source.classes))
    for row, item in zip(targets, items, strict=True):
        row[list(item.labels)] = 1.0
    return {"label": targets}
