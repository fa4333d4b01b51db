"""How good is a model on pictures whose classes are known?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.find import open_data
from vitrail.data.labels import bind
from vitrail.data.loader import Loader, Policy
from vitrail.data.table import Source, Table
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError
from vitrail.run.opened import open_model

NUM_BINS = 15  # of the calibration error
Z95 = 1.959963984540054  # the normal quantile of a 95 % interval


class Evaluation(NamedTuple):
    """Accuracy with its 95 % interval, calibration, and each picture's predicted class."""

    n: int
    top1: float
    top5: float
    real_top1: float | None
    ece: float
    interval: tuple[float, float]
    predictions: tuple[tuple[str, int], ...]
    preprocess: Preprocess = Preprocess()
    changes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    split: str | None = None
    """The split that was judged, if there are splits."""


def evaluate(
    model: str | Path,
    data: str | Path,
    *,
    weights: str | Path | None = None,
    real: str | Path | None = None,
    split: str | None = None,
    data_dir: str | Path | None = None,
    policy: Policy = "error",
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Judge a model on data of any layout; `real` is the file of ReaL labels for ImageNet's validation set.

    `model` is the directory of a run, or a name of the catalogue, which then needs `weights`.
    Of data with splits, test is taken, else val, unless `split` says otherwise. A picture that cannot be read ends it
    under the policy "error", and is left out and named in `skipped` under "skip".
    """
    source = open_data(data, data_dir=data_dir, progress=progress)
    if split is None:  # the one that was kept for judging
        split = next((name for name in ("test", "val") if name in source.split_names), None)
    source = source if split is None else source.split(split)
    real_table = _read_real(Path(real)) if real else None
    network, bound = _network(model, weights, source)
    if not any(bool(parameter.any()) for parameter in network.head.parameters()):
        raise DataError("these weights have no classifier to evaluate.", got=f"{weights}.", hint="fine-tuned weights.")
    if isinstance(source, Table) and source.starts is not None:
        raise DataError("evaluate needs one label a picture.", got="several labels a picture.", hint="other data.")
    numbers = torch.tensor([bound.get(name, -1) for name in source.classes])
    loader = Loader(source=source, preprocess=network.preprocess, batch_size=batch_size, policy=policy)
    rows, targets = [], []
    names: list[str] = []
    for batch in loader.epoch():
        with torch.inference_mode():
            rows.append(network(batch.images).float())
        targets.append(numbers[batch.labels])
        names += batch.names
        if progress is not None:
            progress(len(names) + len(loader.skipped), len(source))
    logits = torch.cat(rows)
    if not names:
        raise DataError("no picture could be read.", got=f"{len(loader.skipped)} that cannot.", hint="vitrail check.")
    if not bool(torch.isfinite(logits).all()):
        raise DataError("the model's outputs are not finite.", got="NaN or infinity.", hint="other weights.")
    real_labels = _real_labels(real_table, names) if real_table is not None else None
    result = _judge(logits, torch.cat(targets), names, real_labels)
    skipped = tuple(f"{finding.path}: {finding.detail}" for finding in loader.skipped)
    return result._replace(preprocess=network.preprocess, changes=network.changes, skipped=skipped, split=split)


def _network(model: str | Path, weights: str | Path | None, source: Source) -> tuple[Any, dict[str, int]]:
    """The model, and the number by which it knows each class of the data."""
    network = open_model(model, weights)
    labels = getattr(network, "labels", None)
    if not labels:
        return network, bind(_present(source), network.spec.num_classes)
    numbers = {label: number for number, label in enumerate(labels)}
    strange = [name for name in _present(source) if name not in numbers]
    if strange:
        raise DataError(
            "the data has classes that the model does not know.",
            got=f"{', '.join(map(repr, strange[:5]))}.",
            hint=f"the model's own: {', '.join(labels[:8])}{', ...' if len(labels) > 8 else ''}.",
        )
    return network, numbers


def _present(source: Source) -> list[str]:
    """The classes that the pictures have; of shards, all that are named."""
    if isinstance(source, Table):
        return [source.classes[label] for label in np.unique(source.labels).tolist()]
    return list(source.classes)


def _judge(
    logits: Tensor,
    target: Tensor,
    names: Sequence[str],
    real_labels: list[set[int]] | None,
) -> Evaluation:
    num = len(names)
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = best == target[:, None]
    top1 = hits[:, 0].double().mean().item()
    real_top1 = None
    if real_labels is not None:
        judged = [best[i, 0].item() in labels for i, labels in enumerate(real_labels) if labels]
        real_top1 = sum(judged) / len(judged) if judged else None
    return Evaluation(
        n=num,
        top1=top1,
        top5=hits.any(dim=1).double().mean().item(),
        real_top1=real_top1,
        ece=calibration_error(logits.softmax(dim=1).max(dim=1).values, hits[:, 0]),
        interval=wilson_interval(int(hits[:, 0].sum()), num),
        predictions=tuple((name, int(best[i, 0])) for i, name in enumerate(names)),
    )


def calibration_error(confidence: Tensor, correct: Tensor) -> float:
    """How far confidence and accuracy are apart on average, over 15 bins of confidence."""
    bins = (confidence * NUM_BINS).long().clamp(max=NUM_BINS - 1)
    gaps = torch.zeros(NUM_BINS, dtype=torch.float64).index_add(0, bins, confidence.double() - correct.double())
    return (gaps.abs().sum() / len(confidence)).item()


def wilson_interval(hits: int, num: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927), honest for small numbers too."""
    share = hits / num
    centre = share + Z95**2 / (2 * num)
    spread = Z95 * math.sqrt(share * (1 - share) / num + Z95**2 / (4 * num**2))
    scale = 1 + Z95**2 / num
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def _read_real(path: Path) -> list[set[int]]:
    """The ReaL labels (arXiv 2006.07159) of ImageNet's 50,000 validation pictures."""
    if not path.is_file():
        raise DataError(f"there is no file {path}.", got="a path that leads nowhere.", hint="the file of ReaL labels.")
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
        return [set(row) for row in table]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} holds no ReaL labels.", got=f"{error}.", hint="real.json of the ReaL labels."
        ) from None


def _real_labels(table: list[set[int]], names: Sequence[str]) -> list[set[int]]:
    """The labels of the pictures, found by the number in ImageNet's file names."""
    chosen = []
    for name in names:
        number = PurePosixPath(name).stem.rpartition("_")[2]
        if not number.isdecimal() or not 0 < int(number) <= len(table):
            raise DataError(
                "ReaL labels belong to ImageNet's validation pictures.",
                got=f"{name}.",
                hint="files named ILSVRC2012_val_00000001.JPEG and so on.",
            )
        chosen.append(table[int(number) - 1])
    return chosen
