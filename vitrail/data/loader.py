"""Batches from a source: seeded, resumable from a step number, the same for any number of workers and ranks.

Workers are threads: decoding and resizing release the GIL, nothing is copied between processes, and there are no
processes to start or to clean up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment import Augment
from vitrail.data.cache import KEY_BYTES, PixelCache
from vitrail.data.mix import mix, one_hot
from vitrail.data.reader import Reader
from vitrail.data.rng import epoch_order, make_rng
from vitrail.data.table import Finding, Item, Source, Stream
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError
from vitrail.machine import num_cores

Policy = Literal["error", "skip"]
PREFETCH = 2  # batches prepared ahead
SHUFFLE_BUFFER = 1000  # images of a stream from which the next one is sampled


SKIP_HINT = "Or skip unreadable images: on_error=skip for train, --on-error skip for evaluate."


class Batch(NamedTuple):
    """Images as the model takes them, their labels, and where they came from."""

    images: Float[Tensor, "B C Y X"]
    labels: Int64[Tensor, " B"] | Float[Tensor, "B K"]
    """Class numbers; or a target per class, if images are mixed or multi-label."""
    indices: Int64[Tensor, " B"]
    names: tuple[str, ...]


class Sample(NamedTuple):
    """One image of a batch, and how often it was shown before in this epoch."""

    item: Item
    repeat: int


@dataclass(kw_only=True)
class Loader:
    """Batches of a source, epoch after epoch.

    `batch_size` counts the images of all ranks together; each rank gets its part of every batch.
    """

    source: Source
    preprocess: Preprocess
    batch_size: int
    augment: Augment | None = None
    seed: int = 0
    shuffle: bool = False
    balanced: bool = False
    drop_last: bool = False
    rank: int = 0
    world: int = 1
    workers: int | None = None
    """Decoding threads; 0 for none, None for one per core."""
    policy: Policy = "error"
    """What to do with an unreadable image: raise an error, or skip it and list it in `skipped`."""
    cache: PixelCache | None = None
    skipped: list[Finding] = field(default_factory=list)
    keys: NDArray[np.uint8] | None = field(default=None, repr=False)
    """The cache key of each image, once it was read."""

    def __post_init__(self) -> None:
        step = self.world * (2 if self._mixes else 1)
        if self.batch_size < 1 or self.batch_size % step:
            raise DataError(
                f"the batch size must be a multiple of {step}.",
                got=f"{self.batch_size} for {self.world} ranks{', images mixed in pairs' if self._mixes else ''}.",
                hint=f"{max(1, round(self.batch_size / step)) * step}.",
            )
        if self.balanced and not self.shuffle:
            raise DataError("balanced sampling needs shuffling.", got="shuffle=False.", hint="shuffle=True.")
        if self.balanced and (isinstance(self.source, Stream) or self.source.starts is not None):
            raise DataError(
                "balanced sampling needs one label per image and random access.",
                got="shards, or multi-label data.",
                hint="leaving out balanced.",
            )

    def _reader(self) -> Reader:
        reader = Reader(self.preprocess, self.augment, self.cache)
        if self.cache is None or isinstance(self.source, Stream):
            return reader
        if self.keys is None:
            self.keys = np.zeros((len(self.source), KEY_BYTES), dtype=np.uint8)
        return reader._replace(keys=self.keys)

    @property
    def _mixes(self) -> bool:
        return self.augment is not None and (self.augment.mixup > 0 or self.augment.cutmix > 0)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        num = len(self.source)
        return num // self.batch_size if self.drop_last else -(-num // self.batch_size)

    def epoch(self, epoch: int = 0) -> Iterator[Batch]:
        """The batches of one epoch."""
        return self.batches(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """The batches of the steps from `start` to `stop`, counted over all epochs; endless without `stop`."""
        if not self.steps_per_epoch:
            raise DataError(
                "the data does not fill a single batch.",
                got=f"{len(self.source)} images, {self.batch_size} per batch.",
                hint="a smaller batch size.",
            )
        reader = self._reader()
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
                pending.append(_PendingBatch(self, reader, epoch, position, samples, pool, workers))
                if pool is None or len(pending) > PREFETCH:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
            if problem is not None:
                raise problem
        finally:
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
            if self.cache is not None:
                self.cache.flush()

    def _plan(self, start: int, stop: int | None) -> Iterator[tuple[int, int, list[Sample]]]:
        """For each step: the epoch, the position of the first image in it, and the samples of this rank."""
        step = start
        while stop is None or step < stop:
            epoch, first = divmod(step, self.steps_per_epoch)
            last = self.steps_per_epoch if stop is None else min(self.steps_per_epoch, first + stop - step)
            for number, samples in enumerate(self._epoch_samples(epoch, first, last), start=first):
                begin, end = (len(samples) * rank // self.world for rank in (self.rank, self.rank + 1))
                if self._mixes:  # a pair stays on one rank, even in an incomplete batch
                    begin, end = begin + begin % 2, min(len(samples), end + end % 2)
                yield epoch, number * self.batch_size + begin, samples[begin:end]
            step += last - first

    def _epoch_samples(self, epoch: int, first: int, last: int) -> Iterator[list[Sample]]:
        """The samples of batches `first` to `last` of an epoch, for all ranks."""
        size = self.batch_size
        if isinstance(self.source, Stream):
            yield from self._stream_samples(self.source, epoch, first, last)
            return
        order, repeats = epoch_order(
            len(self.source),
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            repeats=self.augment.repeats if self.augment else 1,
            balance=self.source.labels if self.balanced else None,
        )
        for step in range(first, last):
            positions = slice(step * size, (step + 1) * size)
            pairs = zip(order[positions].tolist(), repeats[positions].tolist(), strict=True)
            yield [Sample(self.source[index], repeat) for index, repeat in pairs]

    def _stream_samples(self, source: Stream, epoch: int, first: int, last: int) -> Iterator[list[Sample]]:
        """Shards in random order, images through a shuffle buffer; those before batch `first` are skipped."""
        samples: list[Sample] = []
        skip = first * self.batch_size
        rng = make_rng("order", seed=self.seed, epoch=epoch)
        shards = [source.chosen[number] for number in rng.permutation(len(source.chosen))]
        items = _shuffle(source.in_order(shards), rng) if self.shuffle else iter(source)
        repeats = self.augment.repeats if self.augment and self.shuffle else 1
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
    """Each image sampled from a buffer; the next one of the stream takes its slot."""
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
        reader: Reader,
        epoch: int,
        position: int,
        samples: Sequence[Sample],
        pool: ThreadPoolExecutor | None,
        workers: int,
    ) -> None:
        self.loader, self.reader, self.samples = loader, reader, samples
        self.epoch, self.position = epoch, position
        self.images = loader.preprocess.empty_batch(len(samples))
        self.problems: list[Finding | None] = [None] * len(samples)
        size = -(-len(samples) // max(1, 2 * workers)) or 1
        starts = range(0, len(samples), size)
        self.tasks: list[Future[None]] = []
        if pool is None:
            self._prepare(0, len(samples))
        else:
            self.tasks = [pool.submit(self._prepare, start, min(start + size, len(samples))) for start in starts]

    def _prepare(self, start: int, stop: int) -> None:
        loader = self.loader
        for row in range(start, stop):
            item, repeat = self.samples[row]
            try:
                pixels = self.reader.read(item)
                if loader.augment is not None:
                    rng = make_rng("pixels", seed=loader.seed, epoch=self.epoch, index=item.index, repeat=repeat)
                    pixels = loader.augment.apply(loader.preprocess, pixels, rng)
            except DataError as error:
                if loader.policy == "error":
                    raise DataError(
                        error.wrong, got=error.got, hint=f"{error.hint or 'a fresh copy.'} {SKIP_HINT}"
                    ) from None
                self.problems[row] = Finding(item.name, "skipped", f"{error.wrong} {error.got}".strip())
                continue
            loader.preprocess.normalise(pixels[None], out=self.images[row : row + 1])

    def result(self) -> Batch:
        """The batch, once all of its tasks are done."""
        for task in self.tasks:
            task.result()
        loader, samples, images = self.loader, list(self.samples), self.images
        good = [row for row, problem in enumerate(self.problems) if problem is None]
        if len(good) < len(samples):
            listed = {finding.path for finding in loader.skipped}
            loader.skipped.extend(each for each in self.problems if each is not None and each.path not in listed)
            samples, images = [samples[row] for row in good], images[good]
        labels = _stack_labels([sample.item.labels for sample in samples], loader.source)
        if loader.augment is not None and loader._mixes:  # noqa: SLF001 - same file
            targets = labels if labels.ndim == 2 else one_hot(labels, len(loader.source.classes))
            positions = [self.position + row for row in good]
            images, labels = mix(
                images, targets, loader.augment, seed=loader.seed, epoch=self.epoch, positions=positions
            )
        indices = torch.tensor([sample.item.index for sample in samples], dtype=torch.int64)
        return Batch(images, labels, indices, tuple(sample.item.name for sample in samples))


def _stack_labels(labels: Sequence[tuple[int, ...]], source: Source) -> Tensor:
    """Class numbers, or multi-hot targets for multi-label data."""
    if isinstance(source, Stream) or source.starts is None:
        return torch.tensor([label for (label,) in labels], dtype=torch.int64)
    targets = torch.zeros(len(labels), len(source.classes))
    for row, numbers in zip(targets, labels, strict=True):
        row[list(numbers)] = 1.0
    return targets
