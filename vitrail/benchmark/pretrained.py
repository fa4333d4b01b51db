"""Experiments with DeiT-Ti, whose weights were learned from ImageNet: what desk-scale training cannot show."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.benchmark.experiment import NUM_TEST, Laboratory, write_images
from vitrail.benchmark.verdict import Row
from vitrail.catalogue import build, create_model
from vitrail.data.find import open_data
from vitrail.data.prepare.image import image_loader
from vitrail.data.table import Table, split_number
from vitrail.errors import DataError, WeightsError
from vitrail.inspection.distance import measure_heads
from vitrail.inspection.outline import measure_outlines, read_outlines
from vitrail.model.vit import VisionTransformer
from vitrail.training.recipe.image.linear import cross_validate, fit_linear
from vitrail.training.view import SilentView

NAME = "deit_tiny_patch16_224"
GIGAFLOPS = 2.5  # of DeiT-Ti at 224 pixels
PER_BREED = 5  # images to train a probe on, and as many to test it
FOLDS = 5
SMALL_SIDE = 112  # pixels that small images are enlarged to
OUTLINES = Path(__file__).parent / "claim" / "outlines.json"
NUM_PARTS = 3  # of the outlined images, one per seed


def load_deit(lab: Laboratory, side: int = 224) -> VisionTransformer:
    """DeiT-Ti for images of `side` pixels; its positions are interpolated."""
    file = lab.data / "weights" / NAME / "model.safetensors"
    if not file.is_file():
        raise WeightsError("this experiment needs the weights of DeiT-Ti.", got=f"no {file}.", hint="--data FOLDER.")
    model = create_model(NAME, weights=file, image_size=side, num_classes=0).eval()
    assert isinstance(model, VisionTransformer)
    return model


def open_pets(lab: Laboratory) -> Table:
    """All images of Oxford Pets."""
    files = sorted((lab.data / "oxford_pets").glob("*.zip"))
    if not files:
        raise DataError("this experiment needs Oxford Pets.", got=f"no oxford_pets/*.zip in {lab.data}.")
    source = open_data(files[0])
    assert isinstance(source, Table)
    return source


def choose_pets(source: Table, seed: int, per_breed: int) -> tuple[list[int], list[int]]:
    """Rows to train and to test on, as many of each breed; no image is in the choices of two seeds."""
    order = np.random.default_rng(0).permutation(len(source))
    labels = np.asarray(source.labels)
    train: list[int] = []
    test: list[int] = []
    for label in range(len(source.classes)):
        rows = order[labels[order] == label][2 * per_breed * seed :][: 2 * per_breed]
        train += rows[:per_breed].tolist()
        test += rows[per_breed:].tolist()
    return train, test


@dataclass(frozen=True)
class ResolutionProbe:
    """A linear probe of DeiT-Ti on Oxford Pets at another resolution than it was trained at."""

    side: int
    interpolated: bool
    """Whether the positions are interpolated; otherwise they stand in reading order, from the start again at the
    end of the table."""
    seed: int = 0

    @property
    def key(self) -> str:
        """Everything that determines the result."""
        return f"deit pets side={self.side} {'interpolated' if self.interpolated else 'in order'} seed={self.seed}"

    @property
    def cost(self) -> float:
        """The teraflops of the forward pass of all images."""
        return 37 * 2 * PER_BREED * GIGAFLOPS / 1000 * (self.side / 224) ** 2

    def run(self, lab: Laboratory) -> Row:
        """Compute features, fit a linear model on half of the images and test it on the others."""
        began = time.process_time()
        model, source = load_deit(lab, self.side), open_pets(lab)
        if not self.interpolated:
            _replace_positions(model, load_deit(lab))
        train, test = (source.only(each) for each in choose_pets(source, self.seed, PER_BREED))
        return {**_probe(model, train, test, self.seed), "processor_seconds": round(time.process_time() - began, 1)}


@dataclass(frozen=True)
class SmallImageProbe:
    """A linear probe of DeiT-Ti on the images of CIFAR-10 that the small networks are trained on, enlarged."""

    num_images: int
    seed: int = 0

    @property
    def key(self) -> str:
        """Everything that determines the result."""
        return f"deit cifar10 side={SMALL_SIDE} images={self.num_images} seed={self.seed}"

    @property
    def cost(self) -> float:
        """The teraflops of the forward pass of all images."""
        return (self.num_images + NUM_TEST) * GIGAFLOPS / 1000 * (SMALL_SIDE / 224) ** 2

    def run(self, lab: Laboratory) -> Row:
        """Compute features, fit a linear model on the training images and test it."""
        began = time.process_time()
        model, source = load_deit(lab, SMALL_SIDE), open_data(write_images(lab, self.num_images, self.seed))
        assert isinstance(source, Table)
        train, test = (source.only(np.flatnonzero(source.splits == split_number(each))) for each in ("train", "test"))
        return {**_probe(model, train, test, self.seed), "processor_seconds": round(time.process_time() - began, 1)}


def _probe(model: VisionTransformer, train: Table, test: Table, seed: int) -> Row:
    """Fit a linear model on the features of the training images, its strength chosen by folds, and test it."""
    features, labels = zip(*(_features(model, each) for each in (train, test)), strict=True)
    views = features[0][None]
    chosen = cross_validate(views, labels[0], folds=FOLDS, multi_label=False, seed=seed, view=SilentView()).c_value
    linear = fit_linear(views, labels[0], c_value=chosen, multi_label=False)
    accuracy = (linear(features[1]).argmax(dim=1) == labels[1]).double().mean().item()
    return {"accuracy": accuracy, "n": len(labels[1])}


@torch.no_grad()
def _replace_positions(model: VisionTransformer, original: VisionTransformer) -> None:
    """Give the cells the rows of the original table in reading order, from the start again where it ends."""
    assert model.pos_embed is not None
    assert original.pos_embed is not None
    prefix, num = model.spec.num_prefix, model.spec.layout.num_cells
    rows = torch.arange(num) % original.spec.layout.num_cells
    model.pos_embed[:, prefix:] = original.pos_embed[:, prefix:][:, rows]


@torch.inference_mode()
def _features(model: VisionTransformer, source: Table) -> tuple[Float[Tensor, "n D"], Tensor]:
    found = [
        (model(batch.fields["image"]), batch.fields["label"])
        for batch in image_loader(source, model.preprocess, batch_size=16).epoch()
    ]
    return torch.cat([each for each, _ in found]).clone(), torch.cat([each for _, each in found])


@dataclass(frozen=True)
class PretrainedDistance:
    """How far every head of DeiT-Ti attends, over some images of Oxford Pets."""

    seed: int = 0
    num: int = 24

    @property
    def key(self) -> str:
        """Everything that determines the result."""
        return f"deit distance images={self.num} seed={self.seed}"

    @property
    def cost(self) -> float:
        """The teraflops of the forward pass of all images."""
        return 2 * self.num * GIGAFLOPS / 1000

    def run(self, lab: Laboratory) -> Row:
        """Measure the attention distance of every block and head, as a fraction of the image's side."""
        began = time.process_time()
        model, source = load_deit(lab), open_pets(lab)
        train, _ = choose_pets(source, self.seed, 1)
        table = source.only(sorted(train[: self.num]))
        with torch.inference_mode():
            heads = measure_heads(model, _images(model, table))
        return {
            "distance": (heads.distance / 224).tolist(),
            "n": len(table),
            "processor_seconds": round(time.process_time() - began, 1),
        }


def _images(model: VisionTransformer, table: Table) -> Iterator[Tensor]:
    for batch in image_loader(table, model.preprocess, batch_size=8).epoch():
        yield batch.fields["image"]


@dataclass(frozen=True)
class OutlinedTokens:
    """Whether the tokens of one animal are alike, in DeiT-Ti and in the same network with random weights."""

    seed: int = 0
    """Of the random weights; it also chooses a third of the images."""

    @property
    def key(self) -> str:
        """Everything that determines the result."""
        return f"deit outlines seed={self.seed}"

    @property
    def cost(self) -> float:
        """The teraflops of the forward pass of all images, twice, and of comparing their tokens."""
        return 0.5

    def run(self, lab: Laboratory) -> Row:
        """Measure every image in both models; values are means over all blocks."""
        began = time.process_time()
        outlines = dict(list(read_outlines(OUTLINES).items())[self.seed % NUM_PARTS :: NUM_PARTS])
        source = open_pets(lab)
        images = {name: item.content() for item in source for name in outlines if item.name.endswith(name)}
        trained = load_deit(lab)
        torch.manual_seed(self.seed)
        random = build(trained.spec).eval()
        random.about = trained.about
        found: Row = {}
        for prefix, model in (("", trained), ("random_", random)):
            rows = measure_outlines(model, images, outlines)
            for field in ("matched", "control", "eye_ear_matched"):
                values = [[row[field] for row in rows if row["image"] == name and row["block"]] for name in outlines]
                found[f"{prefix}{field}"] = [fmean(each) for each in values if None not in each]
            blocks = sorted({row["block"] for row in rows})
            found[f"{prefix}by_block"] = [fmean(row["matched"] for row in rows if row["block"] == b) for b in blocks]
        return {**found, "n": len(outlines), "processor_seconds": round(time.process_time() - began, 1)}
