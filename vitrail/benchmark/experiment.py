"""The desk-scale experiments behind the claims: training runs with a fixed number of FLOPs on small images.

The images are CIFAR-10's, reduced to 16 x 16 pixels, so that a run takes a minute of one core. What is equal in a
comparison is the compute, three times the FLOPs of the forward pass for each training image: it does not depend on the
machine. Runs are resumable: a finished one is a row of the results, and an interrupted one goes on from its checkpoint.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.benchmark.verdict import Row
from vitrail.catalogue import build, on_meta, spec_named
from vitrail.contract import Classifier
from vitrail.errors import DataError
from vitrail.files import atomic_write
from vitrail.inspection.distance import measure_heads
from vitrail.model.vit import VisionTransformer

SIDE = 16
NUM_TEST = 2000
BATCH_SIZE = 64
FORWARD_AND_BACKWARD = 3
SETTINGS = ("small_until=0", "compile=off", "precision=float32", "cache_gb=0", "workers=1", f"batch_size={BATCH_SIZE}")
NUM_INSPECTED = 64


class Laboratory(NamedTuple):
    """Where the data is, where to work, and `vitrail.train`, which is above this layer."""

    data: Path
    work: Path
    train: Callable[..., Any]


class Experiment(Protocol):
    """One measurement. The same key is the same measurement, whichever claim asks for it."""

    @property
    def key(self) -> str:
        """Everything that determines the result."""

    @property
    def cost(self) -> float:
        """About how many teraflops it takes."""

    def run(self, lab: Laboratory) -> Row:
        """Measure."""


@dataclass(frozen=True)
class TrainingRun:
    """A model trained from scratch on some images of CIFAR-10 with a given amount of compute."""

    model: str
    changes: tuple[str, ...] = ()
    num_images: int = 10_000
    teraflops: float = 0.5
    num_seen: int | None = None
    """The number of images to see, repeated ones counted, in place of `teraflops`."""
    settings: tuple[str, ...] = ()
    """Further settings of the recipe `scratch`."""
    seed: int = 0
    shuffled: bool = False
    """Whether the 2 x 2-pixel patches of all images are in another order, the same for all images."""
    inspect: tuple[str, ...] = field(default=(), compare=False)
    """What to measure of the finished model: `positions`, `distance`, `permuted`."""

    @property
    def key(self) -> str:
        """Everything that determines the result."""
        length = f"teraflops={self.teraflops:g}" if self.num_seen is None else f"seen={self.num_seen}"
        words = [self.model, *self.changes, f"images={self.num_images}", length, *self.settings]
        words += ["shuffled"] * self.shuffled + [f"inspect={each}" for each in self.inspect]
        return " ".join([*words, f"seed={self.seed}"])

    @property
    def cost(self) -> float:
        """Three times the FLOPs of the forward pass, for every image that it sees."""
        if self.num_seen is None:
            return self.teraflops
        return FORWARD_AND_BACKWARD * self.network().flops() * self.num_seen / 1e12

    def network(self) -> Classifier:
        """The model without weights."""
        with on_meta():
            return build(spec_named(self.model).override({"num_classes": 10}).override_words(self.changes))

    def run(self, lab: Laboratory) -> Row:
        """Train the model, test it, and look into it."""
        place = lab.work / "runs" / self.key.replace(" ", "_").replace("/", "-")
        began = time.process_time()
        row = self.fit(lab, place, steps=self.num_steps(FORWARD_AND_BACKWARD * self.network().flops()))
        if self.inspect:
            from vitrail.run.artefact import load

            trained = load(place).eval()
            images, labels = test_images(self.images(lab))
            for each in self.inspect:
                row |= INSPECTIONS[each](trained, images, labels)
        shutil.rmtree(place)
        return {**row, "processor_seconds": round(time.process_time() - began, 1)}

    def num_steps(self, flops: float) -> int:
        """The number of steps, if it takes so many FLOPs to learn from an image once."""
        num_seen = self.num_seen or self.teraflops * 1e12 / flops
        return max(1, round(num_seen / BATCH_SIZE))

    def images(self, lab: Laboratory) -> Path:
        """The file of its images."""
        return write_images(lab, self.num_images, self.seed, shuffled=self.shuffled)

    def fit(
        self, lab: Laboratory, place: Path, *, steps: int, teacher: Path | None = None, weights: Path | None = None
    ) -> Row:
        """Train it in the run directory `place`, with a teacher or from weights, and test it."""
        result = lab.train(
            self.images(lab),
            model=self.model,
            recipe="scratch" if teacher is None else "distill",
            run=place,
            teacher=teacher,
            weights=weights,
            settings=[
                *(f"model.{change}" for change in self.changes),
                *SETTINGS,
                *self.settings,
                f"steps={steps}",
                f"eval_every={steps}",
            ],
            seed=self.seed,
            report=False,
        )
        network = self.network()
        return {
            "accuracy": result.test["top1"],
            "n": result.test["n"],
            "params": sum(parameter.numel() for parameter in network.parameters()),
            "mflops": round(network.flops() / 1e6, 2),
            "steps": steps,
        }


def write_images(lab: Laboratory, num: int, seed: int, *, shuffled: bool = False) -> Path:
    """Write a subset of CIFAR-10's training images, drawn by the seed, and test images, at 16 x 16 pixels."""
    file = lab.work / f"cifar10-{num}-{seed}{'-shuffled' * shuffled}.npz"
    if file.is_file():
        return file
    stored = _largest_cifar(lab.data)
    order = np.random.default_rng(seed).permutation(len(stored["x_train"]))
    if num > len(order):
        raise DataError(
            f"this experiment needs {num:,} training images of CIFAR-10.",
            got=f"{len(order):,}.",
            hint="the whole of CIFAR-10 as cifar10/cifar10.npz in the data folder.",
        )
    rows = np.sort(order[:num])
    arrange = shuffle_patches if shuffled else (lambda images: images)
    with atomic_write(file, DataError) as part, part.open("wb") as opened:
        np.savez(
            opened,
            x_train=arrange(_reduce(stored["x_train"][rows])),
            y_train=stored["y_train"].ravel()[rows],
            x_test=arrange(_reduce(stored["x_test"][:NUM_TEST])),
            y_test=stored["y_test"].ravel()[:NUM_TEST],
        )
    return file


def _largest_cifar(folder: Path) -> dict[str, NDArray[Any]]:
    files = sorted((folder / "cifar10").glob("*.npz"), key=lambda path: path.stat().st_size)
    if not files:
        raise DataError(
            "the experiments train on CIFAR-10.",
            got=f"no cifar10/*.npz in {folder}.",
            hint="--data FOLDER, with x_train, y_train, x_test and y_test in cifar10/cifar10.npz.",
        )
    with np.load(files[-1]) as stored:
        return {name: stored[name] for name in ("x_train", "y_train", "x_test", "y_test")}


def _reduce(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The mean of each 2 x 2 pixels."""
    cells = images.reshape(len(images), SIDE, 2, SIDE, 2, 3).astype(np.float32)
    return np.rint(cells.mean(axis=(2, 4))).astype(np.uint8)


def shuffle_patches(images: NDArray[np.uint8], patch: int = 2) -> NDArray[np.uint8]:
    """The same images with their patches in another order, the same one for all."""
    grid = SIDE // patch
    cells = images.reshape(len(images), grid, patch, grid, patch, 3).swapaxes(2, 3)
    flat = cells.reshape(len(images), grid * grid, patch, patch, 3)[:, patch_order(grid)]
    return flat.reshape(len(images), grid, grid, patch, patch, 3).swapaxes(2, 3).reshape(images.shape)


def patch_order(grid: int) -> NDArray[np.int64]:
    """The order that `shuffle_patches` brings patches into."""
    return np.random.default_rng(0).permutation(grid * grid)


def test_images(data: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The test images of a file of `write_images`, and their labels."""
    with np.load(data) as stored:
        return stored["x_test"], stored["y_test"]


def _as_input(model: Classifier, images: NDArray[np.uint8]) -> torch.Tensor:
    return torch.stack([model.preprocess(image) for image in images])


def _positions(model: Classifier, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Row:  # noqa: ARG001
    """How much of the learned position table is the sum of a term for the row and a term for the column."""
    assert isinstance(model, VisionTransformer)
    assert model.pos_embed is not None
    grid = model.spec.layout.grid
    table = model.pos_embed.detach()[0, -model.spec.layout.num_cells :].double().numpy()
    straight = additive_r2(table.reshape(*grid, -1))
    unshuffled = np.empty_like(table)
    unshuffled[patch_order(grid[0])] = table
    return {"position_r2": straight, "position_r2_unshuffled": additive_r2(unshuffled.reshape(*grid, -1))}


def additive_r2(table: NDArray[np.float64]) -> float:
    """The variance of a table [Y X D] that a row term plus a column term explain, adjusted for their number."""
    rows, columns = table.shape[:2]
    centred = table - table.mean(axis=(0, 1))
    explained = centred.mean(axis=1, keepdims=True) + centred.mean(axis=0, keepdims=True)
    r2 = float(1 - ((centred - explained) ** 2).sum() / (centred**2).sum())
    num, terms = rows * columns, rows + columns - 2
    return 1 - (1 - r2) * (num - 1) / (num - terms - 1)


def _distance(model: Classifier, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Row:  # noqa: ARG001
    """The attention distance of every block and head, as a fraction of the image's side."""
    assert isinstance(model, VisionTransformer)
    with torch.inference_mode():
        heads = measure_heads(model, [_as_input(model, images[:NUM_INSPECTED])])
    return {"distance": (heads.distance / model.spec.image_size[0]).tolist()}


@torch.inference_mode()
def _permuted(model: Classifier, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Row:
    """Accuracy on images whose patches are in a random order, another one for each, and how often the answer stays."""
    assert isinstance(model, VisionTransformer)
    patch = model.patch_embed.cell[0]
    inputs = _as_input(model, images)
    grid = inputs.shape[2] // patch
    generator = torch.Generator().manual_seed(0)
    cells = inputs.unfold(2, patch, patch).unfold(3, patch, patch).flatten(2, 3)  # [B C N P P]
    orders = torch.stack([torch.randperm(grid * grid, generator=generator) for _ in inputs])
    moved = cells.gather(2, orders[:, None, :, None, None].expand_as(cells))
    moved = moved.reshape(*moved.shape[:2], grid, grid, patch, patch)
    permuted = moved.permute(0, 1, 2, 4, 3, 5).reshape(inputs.shape)
    answers = [
        torch.cat([model(part) for part in torch.split(each, 256)]).argmax(dim=1).numpy() for each in (inputs, permuted)
    ]
    return {
        "permuted_accuracy": float((answers[1] == labels).mean()),
        "unchanged": float((answers[0] == answers[1]).mean()),
    }


INSPECTIONS: dict[str, Callable[[Classifier, NDArray[np.uint8], NDArray[np.int64]], Row]] = {
    "positions": _positions,
    "distance": _distance,
    "permuted": _permuted,
}


def seconds_per_teraflop() -> float:
    """How long a teraflop of training takes on one core of this machine, measured in about a second."""
    from vitrail.benchmark.networks import vit

    run = vit("medium")
    model = build(run.network().spec)
    images, threads = torch.rand(BATCH_SIZE, 3, SIDE, SIDE), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = []
        for _ in range(4):
            began = time.perf_counter()
            model(images).square().sum().backward()
            seconds.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return min(seconds) / (FORWARD_AND_BACKWARD * model.flops() * BATCH_SIZE / 1e12)
