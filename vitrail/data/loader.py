"""From a source to batches: seeded, resumable from a step number, the same for any number of workers and ranks.

Workers are threads. Decoding and resizing leave Python's lock, nothing is copied between processes, and there is
nothing to start or to clean up.
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
from vitrail.data.mix import mix, targets_of
from vitrail.data.reader import Reader
from vitrail.data.rng import epoch_order, make_rng
from vitrail.data.table import Finding, Item, Source, Stream
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError
from vitrail.machine import num_cores

Policy = Literal["error", "skip"]
AHEAD = 2  # batches that are prepared while one is used
SHUFFLED = 1000  # pictures of a stream among which the next one is drawn


SKIP = "Or to leave out what cannot be read: on_error=skip for train, --on-error skip for evaluate."


class Batch(NamedTuple):
    """Pictures as the model takes them, their labels, and where they came from."""

    images: Float[Tensor, "B C Y X"]
    labels: Int64[Tensor, " B"] | Float[Tensor, "B K"]
    """Class numbers; or a share for each class, if pictures are mixed or have several labels."""
    indices: Int64[Tensor, " B"]
    names: tuple[str, ...]


class Job(NamedTuple):
    """One place of a batch: which picture, and how often it was shown before in this epoch."""

    picture: Item
    repeat: int


@dataclass(kw_only=True)
class Loader:
    """Batches of a source, epoch after epoch.

    `batch_size` counts the pictures of all ranks together; each rank gets its part of every batch.
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
    """Threads that decode; 0 for none, None for one a core."""
    policy: Policy = "error"
    """What to do with a picture that cannot be read: stop, or leave it out and name it in `skipped`."""
    cache: PixelCache | None = None
    skipped: list[Finding] = field(default_factory=list)
    keys: NDArray[np.uint8] | None = field(default=None, repr=False)
    """What the cache knows each picture by, once it was seen."""

    def __post_init__(self) -> None:
        step = self.world * (2 if self._mixes else 1)
        if self.batch_size < 1 or self.batch_size % step:
            raise DataError(
                f"the batch size must be a multiple of {step}.",
                got=f"{self.batch_size} for {self.world} ranks{', pictures mixed in pairs' if self._mixes else ''}.",
                hint=f"{max(1, round(self.batch_size / step)) * step}.",
            )
        if self.balanced and not self.shuffle:
            raise DataError("balanced sampling draws at random.", got="shuffle=False.", hint="shuffle=True.")
        if self.balanced and (isinstance(self.source, Stream) or self.source.starts is not None):
            raise DataError(
                "balanced sampling needs one label a picture, and pictures that can be reached in any order.",
                got="shards, or several labels a picture.",
                hint="sampling as it is.",
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
        """The batches from one step to another, counted from the first of the first epoch; without end if not told."""
        if not self.steps_per_epoch:
            raise DataError(
                "there is no whole batch in the data.",
                got=f"{len(self.source)} pictures, {self.batch_size} a batch.",
                hint="a smaller batch size.",
            )
        reader = self._reader()
        workers = num_cores() if self.workers is None else self.workers
        pool = ThreadPoolExecutor(workers, thread_name_prefix="vitrail-loader") if workers else None
        ahead: deque[_Coming] = deque()
        try:
            plan = self._plan(start, stop)
            problem = None
            while problem is None:
                try:
                    epoch, position, jobs = next(plan)
                except StopIteration:
                    break
                except DataError as error:  # a damaged shard: what came before it is still whole
                    problem = error
                    continue
                ahead.append(_Coming(self, reader, epoch, position, jobs, pool, workers))
                if pool is None or len(ahead) > AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
            if problem is not None:
                raise problem
        finally:
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
            if self.cache is not None:
                self.cache.flush()

    def _plan(self, start: int, stop: int | None) -> Iterator[tuple[int, int, list[Job]]]:
        """Epoch, place of the first picture and pictures of this rank, for each step."""
        step = start
        while stop is None or step < stop:
            epoch, first = divmod(step, self.steps_per_epoch)
            last = self.steps_per_epoch if stop is None else min(self.steps_per_epoch, first + stop - step)
            for number, jobs in enumerate(self._epoch_jobs(epoch, first, last), start=first):
                begin, end = (len(jobs) * rank // self.world for rank in (self.rank, self.rank + 1))
                if self._mixes:  # a pair stays on one rank, also in a batch that is not full
                    begin, end = begin + begin % 2, min(len(jobs), end + end % 2)
                yield epoch, number * self.batch_size + begin, jobs[begin:end]
            step += last - first

    def _epoch_jobs(self, epoch: int, first: int, last: int) -> Iterator[list[Job]]:
        """The pictures of the batches `first` to `last` of an epoch, for all ranks."""
        size = self.batch_size
        if isinstance(self.source, Stream):
            yield from self._streamed_jobs(self.source, epoch, first, last)
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
            places = slice(step * size, (step + 1) * size)
            pairs = zip(order[places].tolist(), repeats[places].tolist(), strict=True)
            yield [Job(self.source[index], repeat) for index, repeat in pairs]

    def _streamed_jobs(self, source: Stream, epoch: int, first: int, last: int) -> Iterator[list[Job]]:
        """Shards in an order of this epoch, pictures drawn from the next thousand; the first are passed by."""
        jobs: list[Job] = []
        skip = first * self.batch_size
        random = make_rng("order", seed=self.seed, epoch=epoch)
        shards = [source.chosen[place] for place in random.permutation(len(source.chosen))]
        pictures = _drawn(source.in_order(shards), random) if self.shuffle else iter(source)
        repeats = self.augment.repeats if self.augment and self.shuffle else 1
        places = range(len(source))  # an epoch keeps its length, whatever the repeats
        shown = ((picture, repeat) for picture in pictures for repeat in range(repeats))
        for place, (picture, repeat) in zip(places, shown, strict=False):
            if place < skip:
                continue
            jobs.append(Job(picture, repeat))
            if len(jobs) == self.batch_size:
                yield jobs
                first, jobs = first + 1, []
                if first == last:
                    return
        if jobs and not self.drop_last:
            yield jobs


def _drawn(pictures: Iterator[Item], random: np.random.Generator) -> Iterator[Item]:
    """Each picture drawn from those that wait; its place is taken by the next one of the stream."""
    waiting: list[Item] = []
    for picture in pictures:
        if len(waiting) < SHUFFLED:
            waiting.append(picture)
            continue
        place = int(random.integers(SHUFFLED))
        yield waiting[place]
        waiting[place] = picture
    for place in random.permutation(len(waiting)).tolist():
        yield waiting[place]


class _Coming:
    """A batch that is being prepared, a few pictures a task, each task writing its rows."""

    def __init__(
        self,
        loader: Loader,
        reader: Reader,
        epoch: int,
        position: int,
        jobs: Sequence[Job],
        pool: ThreadPoolExecutor | None,
        workers: int,
    ) -> None:
        self.loader, self.reader, self.jobs = loader, reader, jobs
        self.epoch, self.position = epoch, position
        spec = loader.preprocess
        self.images = spec.empty_batch(len(jobs))
        self.problems: list[Finding | None] = [None] * len(jobs)
        size = -(-len(jobs) // max(1, 2 * workers)) or 1
        starts = range(0, len(jobs), size)
        self.tasks: list[Future[None]] = []
        if pool is None:
            self._prepare(0, len(jobs))
        else:
            self.tasks = [pool.submit(self._prepare, start, min(start + size, len(jobs))) for start in starts]

    def _prepare(self, start: int, stop: int) -> None:
        loader = self.loader
        for place in range(start, stop):
            picture, repeat = self.jobs[place]
            try:
                pixels = self.reader.stored(picture)
                if loader.augment is not None:
                    random = make_rng("pixels", seed=loader.seed, epoch=self.epoch, index=picture.index, repeat=repeat)
                    pixels = loader.augment.pixels(loader.preprocess, pixels, random)
            except DataError as error:
                if loader.policy == "error":
                    raise DataError(
                        error.wrong, got=error.got, hint=f"{error.hint or 'a whole file.'} {SKIP}"
                    ) from None
                self.problems[place] = Finding(picture.name, "skipped", f"{error.wrong} {error.got}".strip())
                continue
            loader.preprocess.normalise(pixels[None], out=self.images[place : place + 1])

    def result(self) -> Batch:
        """The batch, once it is whole."""
        for task in self.tasks:
            task.result()
        loader, jobs, images = self.loader, list(self.jobs), self.images
        kept = [place for place, problem in enumerate(self.problems) if problem is None]
        if len(kept) < len(jobs):
            named = {finding.path for finding in loader.skipped}
            loader.skipped.extend(each for each in self.problems if each is not None and each.path not in named)
            jobs, images = [jobs[place] for place in kept], images[kept]
        labels = _labels([job.picture.labels for job in jobs], loader.source)
        if loader.augment is not None and loader._mixes:  # noqa: SLF001 - of one file
            targets = labels if labels.ndim == 2 else targets_of(labels, len(loader.source.classes))
            places = [self.position + place for place in kept]
            images, labels = mix(images, targets, loader.augment, seed=loader.seed, epoch=self.epoch, places=places)
        indices = torch.tensor([job.picture.index for job in jobs], dtype=torch.int64)
        return Batch(images, labels, indices, tuple(job.picture.name for job in jobs))


def _labels(labels: Sequence[tuple[int, ...]], source: Source) -> Tensor:
    """Class numbers if each picture has one by its nature, else a 1 for each class that a picture has."""
    if isinstance(source, Stream) or source.starts is None:
        return torch.tensor([label for (label,) in labels], dtype=torch.int64)
    targets = torch.zeros(len(labels), len(source.classes))
    for row, numbers in zip(targets, labels, strict=True):
        row[list(numbers)] = 1.0
    return targets
