"""Benchmarks on this machine, side by side with other installed libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail import plug
from vitrail.benchmark.compare import BenchResult
from vitrail.contract import Classifier
from vitrail.data.find import open_data
from vitrail.data.prepare.image import image_loader
from vitrail.data.rng import make_rng
from vitrail.data.table import Table
from vitrail.errors import DataError, InspectionError, SpecError
from vitrail.files import atomic_write
from vitrail.inspection.drawing import save_figure
from vitrail.inspection.sharpness import BATCH_SIZE, NUM_IMAGES, Sharpness, measure_sharpness
from vitrail.run.open import open_model

WORKLOADS = "vitrail.benchmark.workload"
DPI = 160


def bench(
    workload: str,
    data: str | Path | None = None,
    *,
    rounds: int = 5,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> BenchResult:
    """Run a workload (`machine`, `training` or `data`) with its contenders in turns; return medians and ratios.

    `options` depend on the workload: `workers` for data, `model` for training.
    """
    run = plug.load(WORKLOADS, workload).run
    unknown = [name for name in options if name not in run.__annotations__]
    if unknown:
        raise SpecError(
            f"the workload {workload} does not have this option.",
            got=", ".join(f"{name}={options[name]}" for name in unknown) + ".",
            hint="vitrail bench --help.",
        )
    return run(None if data is None else str(data), rounds=rounds, progress=progress, **options)


def sharpness(
    model: str | Path,
    data: str | Path,
    *,
    out: str | Path = "sharpness.png",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Sharpness:
    """Measure how sharp the minimum of a run is, on some of its training images, and write the figure `out`."""
    network, source = open_model(model), open_data(data)
    if not isinstance(network, Classifier) or network.about.kind == "regression":
        raise SpecError(
            "sharpness is measured on a classifier in PyTorch.", got=f"{model}.", hint="a run of vitrail train."
        )
    train = source.split("train") if "train" in source.split_names else source
    if not isinstance(train, Table) or train.multi_label or train.classes != network.labels:
        raise DataError(
            f"the sharpness of {model} is measured on images of its classes, with one label each.",
            got=f"{data}: {len(source.classes)} classes; the model has {len(network.labels)}.",
            hint="the data that it was trained on.",
        )
    rows = make_rng("order", seed=seed, epoch=0).permutation(len(train))[:NUM_IMAGES]
    loader = image_loader(train.only(sorted(rows.tolist())), network.preprocess, batch_size=BATCH_SIZE)
    batches = [(batch.fields["image"], batch.fields["label"]) for batch in loader.epoch()]
    found = measure_sharpness(network, batches, seed=seed, progress=progress)
    with atomic_write(Path(out), InspectionError) as part:
        save_figure(found.figure(Path(model).name), part, "png", DPI)
    return found
