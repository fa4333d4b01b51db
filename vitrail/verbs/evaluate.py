"""How good is a model on pictures whose classes are known?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.find import open_data
from vitrail.data.loader import Loader, Policy
from vitrail.data.table import Source
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError
from vitrail.metric.paired import Paired
from vitrail.metric.summary import Summary
from vitrail.run.label_mapping import class_numbers, truth_of
from vitrail.run.open import open_model
from vitrail.run.predictions import PredictionRow, compare_rows, prediction_rows, summary_of
from vitrail.run.predictor import calibration_of, labels_of, require_classifier
from vitrail.training.evaluation import Outputs, infer
from vitrail.training.splits import learned_from
from vitrail.training.world import World


@dataclass(frozen=True, kw_only=True)
class Evaluation(Summary):
    """All that can be said of a model on these pictures."""

    real_top1: float | None
    unknown: float
    """The share of pictures that the model calls unknown."""
    predictions: tuple[tuple[str, int], ...]
    """Each picture's name and the number of its likeliest class."""
    rows: tuple[PredictionRow, ...]
    """What the model says to each picture, in words."""
    preprocess: Preprocess
    changes: tuple[str, ...]
    skipped: tuple[str, ...]
    split: str | None
    """The split that was judged, if there are splits."""
    learned_from: bool
    """Whether the run was trained on these very pictures, so that nothing can be said of others."""
    compared: Paired | None
    """How much more often it is right than the other model, if there is one."""


def evaluate(
    model: str | Path,
    data: str | Path,
    *,
    weights: str | Path | None = None,
    compare: str | Path | None = None,
    real: str | Path | None = None,
    split: str | None = None,
    tta: bool = False,
    data_dir: str | Path | None = None,
    policy: Policy = "error",
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Judge a model on data of any layout; `real` is the file of ReaL labels for ImageNet's validation set.

    `model` is the directory of a run, a weight file, or a name of the catalogue, which then needs `weights`; `compare`
    is another one, judged on the same pictures. Of data with splits, test is taken, else val, unless `split` says
    otherwise. With `tta` each picture is looked at mirrored too. A picture that cannot be read ends it under the policy
    "error", and is left out and named in `skipped` under "skip".
    """
    source = open_data(data, data_dir=data_dir, progress=progress)
    whole = source
    if split is None:  # the one that was kept for judging
        split = next((name for name in ("test", "val") if name in source.split_names), None)
    source = source if split is None else source.split(split)
    real_table = _read_real(Path(real)) if real else None
    asked = [(model, weights), *([] if compare is None else [(compare, None)])]
    networks = [_network(each, files, source) for each, files in asked]  # what is wrong is told before the work begins
    judged = [
        _judge(network, numbers, source, policy=policy, batch_size=batch_size, tta=tta, progress=progress)
        for network, numbers in networks
    ]
    network, (account, rows, outputs, skipped) = networks[0][0], judged[0]
    called = outputs.logits.argmax(dim=1).tolist()
    real_labels = _real_labels(real_table, outputs.names) if real_table is not None else None
    return Evaluation(
        **{field.name: getattr(account, field.name) for field in fields(account)},
        real_top1=None if real_labels is None else _real_accuracy(called, real_labels),
        unknown=fmean(row.unknown for row in rows),
        predictions=tuple(zip(outputs.names, called, strict=True)),
        rows=tuple(rows),
        preprocess=network.preprocess,
        changes=network.changes,
        skipped=skipped,
        split=split,
        learned_from=split in {None, "train"} and learned_from(model, whole),
        compared=None if compare is None else compare_rows(judged[1][1], rows),
    )


def _judge(
    network: Any,
    numbers: dict[str, int],
    source: Source,
    *,
    policy: Policy,
    batch_size: int,
    tta: bool,
    progress: Callable[[int, int], None] | None,
) -> tuple[Summary, list[PredictionRow], Outputs, tuple[str, ...]]:
    """The account of one model, what it says to each picture, and the pictures that cannot be read."""
    loader = Loader(source=source, preprocess=network.preprocess, batch_size=batch_size, policy=policy)
    outputs = infer(BothWays(network) if tta else network, loader, World(), progress=progress)
    if not outputs.names:
        raise DataError("no picture could be read.", got=f"{len(loader.skipped)} that cannot.", hint="vitrail check.")
    if not bool(torch.isfinite(outputs.logits).all()):
        raise DataError("the model's outputs are not finite.", got="NaN or infinity.", hint="other weights.")
    labels, calibration = labels_of(network), calibration_of(network)
    truth = truth_of(network, numbers, source, outputs.labels)
    account = summary_of(outputs.logits, truth, labels, calibration)
    rows = prediction_rows("", outputs.names, outputs.logits, truth, labels, calibration)
    return account, rows, outputs, tuple(f"{finding.path}: {finding.detail}" for finding in loader.skipped)


class BothWays(nn.Module):
    """A model that looks at each picture as it is and mirrored, and says the mean."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B K"]:
        return (self.model(images) + self.model(images.flip(3))) / 2


def _network(model: str | Path, weights: str | Path | None, source: Source) -> tuple[Any, dict[str, int]]:
    """The model, and the number by which it knows each class of the data."""
    network = open_model(model, weights)
    require_classifier(network)
    return network, class_numbers(network, source, str(model))


def _real_accuracy(called: Sequence[int], real_labels: Sequence[set[int]]) -> float | None:
    """How often the predicted class is one of the ReaL labels; pictures without any do not count."""
    judged = [number in labels for number, labels in zip(called, real_labels, strict=True) if labels]
    return sum(judged) / len(judged) if judged else None


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
