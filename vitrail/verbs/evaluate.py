"""How good is a model on pictures whose classes are known?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail import catalogue
from vitrail.data.decode import open_image
from vitrail.data.labels import bind
from vitrail.data.source.folder import Sample, list_samples
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError

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
    preprocess: Preprocess
    changes: tuple[str, ...]


def evaluate(
    model: str,
    data: str | Path,
    *,
    weights: str | Path,
    real: str | Path | None = None,
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Judge a model on a folder of class folders; `real` is the file of ReaL labels for ImageNet's validation set."""
    if not str(data):
        raise DataError("the folder of pictures has no name.", got="an empty word.", hint="a folder of class folders.")
    samples = list_samples(Path(data))
    real_labels = _read_real(Path(real), samples) if real else None
    network = catalogue.create_model(model, weights=weights).eval()
    if not any(bool(parameter.any()) for parameter in network.head.parameters()):
        raise DataError("these weights have no classifier to evaluate.", got=f"{weights}.", hint="fine-tuned weights.")
    classes = bind({sample.label for sample in samples}, network.spec.num_classes)
    preprocess = Preprocess.parse(catalogue.preprocess_named(model))
    rows = []
    for done, batch in _batches(samples, preprocess, batch_size):
        with torch.inference_mode():
            rows.append(network(batch).float())
        if progress is not None:
            progress(done, len(samples))
    logits = torch.cat(rows)
    if not bool(torch.isfinite(logits).all()):
        raise DataError("the model's outputs are not finite.", got="NaN or infinity.", hint="other weights.")
    target = torch.tensor([classes[sample.label] for sample in samples])
    return _judge(logits, target, samples, real_labels, preprocess, network.changes)


def _batches(samples: Sequence[Sample], preprocess: Preprocess, size: int) -> Iterator[tuple[int, Tensor]]:
    """Prepared batches; the next one is decoded while the model works on this one."""

    def prepare(sample: Sample) -> Tensor:
        return preprocess(open_image(sample.path))

    with ThreadPoolExecutor() as pool:
        starts = range(0, len(samples), size)
        ahead = [pool.submit(prepare, sample) for sample in samples[:size]]
        for start in starts:
            now, ahead = ahead, [pool.submit(prepare, sample) for sample in samples[start + size : start + 2 * size]]
            yield min(start + size, len(samples)), torch.stack([each.result() for each in now])


def _judge(
    logits: Tensor,
    target: Tensor,
    samples: Sequence[Sample],
    real_labels: list[set[int]] | None,
    preprocess: Preprocess,
    changes: tuple[str, ...],
) -> Evaluation:
    num = len(samples)
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
        predictions=tuple((str(sample.path), int(best[i, 0])) for i, sample in enumerate(samples)),
        preprocess=preprocess,
        changes=changes,
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


def _read_real(path: Path, samples: Sequence[Sample]) -> list[set[int]]:
    """The ReaL labels (arXiv 2006.07159) of the samples, found by the number in ImageNet's file names."""
    if not path.is_file():
        raise DataError(f"there is no file {path}.", got="a path that leads nowhere.", hint="the file of ReaL labels.")
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
        labels = [set(row) for row in table]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} holds no ReaL labels.", got=f"{error}.", hint="real.json of the ReaL labels."
        ) from None
    chosen = []
    for sample in samples:
        number = sample.path.stem.rpartition("_")[2]
        if not number.isdecimal() or not 0 < int(number) <= len(labels):
            raise DataError(
                "ReaL labels belong to ImageNet's validation pictures.",
                got=f"{sample.path.name}.",
                hint="files named ILSVRC2012_val_00000001.JPEG and so on.",
            )
        chosen.append(labels[int(number) - 1])
    return chosen
