"""Evaluate a model on labelled images or clips."""

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

from vitrail import plug
from vitrail.data.find import open_data
from vitrail.data.loader import Loader, Policy
from vitrail.data.preparation import InputPreprocess
from vitrail.data.prepare.image import image_loader
from vitrail.data.table import IMAGE, Source
from vitrail.engine.exported import ImageModel
from vitrail.errors import DataError
from vitrail.kind.regression import NumberEvaluation
from vitrail.kind.regression import evaluate as evaluate_numbers
from vitrail.metric.paired import Paired
from vitrail.metric.summary import Summary
from vitrail.objective.classify import Classify
from vitrail.run.aligned_model import load_aligned
from vitrail.run.artefact import ALIGNMENT, find_target, kind_of
from vitrail.run.label_mapping import imagenet_numbers, map_classes, map_labels
from vitrail.run.open import open_model
from vitrail.run.predictions import PredictionRow, compare_rows, prediction_rows, summary_of
from vitrail.run.predictor import calibration_of, input_preprocess, labels_of, require_classifier
from vitrail.run.text_model import TEXT_KINDS, load_text_model
from vitrail.training.evaluation import Answers, infer
from vitrail.training.learner import Learner
from vitrail.training.recipe.clip.prepare import clip_preparation
from vitrail.training.recipe.several.retrieval import AlignedEvaluation
from vitrail.training.recipe.text.evaluation import TextEvaluation
from vitrail.training.splits import was_trained_on
from vitrail.training.world import World

KINDS = "vitrail.kind"


@dataclass(frozen=True, kw_only=True)
class Evaluation(Summary):
    """The scores of a model on a data set, with its predictions."""

    real_top1: float | None
    unknown: float
    """The fraction of images that the model flags as unknown."""
    predictions: tuple[tuple[str, int], ...]
    """Each image's name and the index of its most likely class."""
    rows: tuple[PredictionRow, ...]
    """The prediction for each image."""
    preprocess: InputPreprocess
    changes: tuple[str, ...]
    skipped: tuple[str, ...]
    split: str | None
    """The split that was evaluated, if there are splits."""
    learned_from: bool
    """Whether the run was trained on these images, so that the scores say nothing about other images."""
    compared: Paired | None
    """The difference from the other model, if there is one."""


def evaluate(
    model: str | Path,
    data: str | Path | Source,
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
) -> Evaluation | NumberEvaluation | TextEvaluation | AlignedEvaluation:
    """Evaluate a model on data of any layout; `real` is the file of ReaL labels for ImageNet's validation set.

    `model` is the directory of a run, a weight file, or a catalogue name, which needs `weights`; `compare` is another
    model to evaluate on the same images. `split` defaults to test, else val, if the data has splits. `tta` averages
    the logits of each image and its mirror image. An unreadable image raises an error under the policy "error"; under
    "skip" it is left out and listed in `skipped`.
    """
    kind = kind_of(model) if weights is None else None
    if kind in (*TEXT_KINDS, ALIGNMENT):
        if compare is not None or real or tta:
            raise DataError(f"a run of the kind {kind} is evaluated alone.", got="--compare, --real or --tta.")
        own: dict[str, Any] = {"policy": policy} if kind == ALIGNMENT else {}
        return _evaluate_kind(str(kind), model, data, split=split, batch_size=batch_size, progress=progress, **own)
    target = find_target(model)
    all_splits = _open_source(data, data_dir=data_dir, target=target, progress=progress)
    split = split or next((name for name in ("test", "val") if name in all_splits.split_names), None)
    source = all_splits if split is None else all_splits.split(split)
    learned_from = split in {None, "train"} and was_trained_on(model, all_splits)
    options: dict[str, Any] = {"policy": policy, "batch_size": batch_size, "progress": progress}
    if target is not None:
        if compare is not None or real or tta:
            raise DataError("a model that predicts a number is evaluated alone.", got="--compare, --real or --tta.")
        return evaluate_numbers(open_model(model, weights), source, split=split, learned_from=learned_from, **options)
    if tta and source.modalities != IMAGE:
        raise DataError("--tta mirrors images.", got="sounds or videos.", hint="the command without.")
    real_table = _read_real(Path(real)) if real else None
    models = [(model, weights), *([] if compare is None else [(compare, None)])]
    networks = [_open_network(each, files, source) for each, files in models]  # all errors come before the work starts
    numbers = imagenet_numbers(networks[0][0]) if real else []
    evaluated = [_evaluate_network(network, indices, source, tta=tta, **options) for network, indices in networks]
    network, (summary, rows, outputs, skipped) = networks[0][0], evaluated[0]
    predicted = outputs["logits"].argmax(dim=1).tolist()
    real_labels = _real_labels(real_table, outputs.names) if real_table is not None else None
    return Evaluation(
        **{field.name: getattr(summary, field.name) for field in fields(summary)},
        real_top1=None if real_labels is None else _real_accuracy([numbers[each] for each in predicted], real_labels),
        unknown=fmean(row.unknown for row in rows),
        predictions=tuple(zip(outputs.names, predicted, strict=True)),
        rows=tuple(rows),
        preprocess=input_preprocess(network),
        changes=network.changes,
        skipped=skipped,
        split=split,
        learned_from=learned_from,
        compared=None if compare is None else compare_rows(evaluated[1][1], rows),
    )


def _open_source(data: str | Path | Source, **options: Any) -> Source:
    return data if isinstance(data, Source) else open_data(data, **options)


def _evaluate_kind(
    kind: str, model: str | Path, data: str | Path | Source, **options: Any
) -> TextEvaluation | AlignedEvaluation:
    """Evaluate a model that is no classifier, as its kind does."""
    opened: Any = load_aligned(model) if kind == ALIGNMENT else load_text_model(model)
    return plug.load(KINDS, kind).evaluate(opened, data, **options)


def _evaluate_network(
    network: ImageModel,
    indices: dict[str, int],
    source: Source,
    *,
    policy: Policy,
    batch_size: int,
    tta: bool,
    progress: Callable[[int, int], None] | None,
) -> tuple[Summary, list[PredictionRow], Answers, tuple[str, ...]]:
    """The scores of one model, its predictions, its outputs, and the images that cannot be read."""
    preprocess = input_preprocess(network)
    if source.modalities != (preprocess.modality,):
        raise DataError(
            f"this model classifies {preprocess.modality}s.",
            got=f"data of {' and '.join(source.modalities)}.",
            hint=f"a folder of {preprocess.modality}s.",
        )
    if preprocess.modality == "image":
        loader = image_loader(source, network.preprocess, batch_size=batch_size, policy=policy)
    else:
        loader = Loader(source=source, prepare=clip_preparation(preprocess), batch_size=batch_size, policy=policy)
    learner = Learner(FlipAverage(network) if tta else network, Classify())
    outputs = infer(learner, loader, World(), progress=progress)
    if not outputs.names:
        raise DataError(
            f"no {preprocess.modality} could be read.", got=f"{len(loader.skipped)} unreadable.", hint="vitrail check."
        )
    if not bool(torch.isfinite(outputs["logits"]).all()):
        raise DataError("the model's outputs are not finite.", got="NaN or infinity.", hint="other weights.")
    labels, calibration = labels_of(network), calibration_of(network)
    truth = map_labels(network, indices, source, outputs["label"])
    summary = summary_of(outputs["logits"], truth, labels, calibration)
    rows = prediction_rows("", outputs.names, outputs["logits"], truth, labels, calibration)
    return summary, rows, outputs, tuple(f"{finding.path}: {finding.detail}" for finding in loader.skipped)


class FlipAverage(nn.Module):
    """Averages a model's logits over each image and its mirror image."""

    TAKES = ("image",)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B K"]:
        return (self.model(images) + self.model(images.flip(3))) / 2


def _open_network(model: str | Path, weights: str | Path | None, source: Source) -> tuple[ImageModel, dict[str, int]]:
    """The model, and its index of each class of the data."""
    network = open_model(model, weights)
    require_classifier(network)
    return network, map_classes(network, source, str(model))


def _real_accuracy(predicted: Sequence[int], real_labels: Sequence[set[int]]) -> float | None:
    """How often the predicted class (ImageNet's number) is one of the ReaL labels; images without any do not count."""
    hits = [index in labels for index, labels in zip(predicted, real_labels, strict=True) if labels]
    return sum(hits) / len(hits) if hits else None


def _read_real(path: Path) -> list[set[int]]:
    """Read the ReaL labels (arXiv 2006.07159) of ImageNet's 50,000 validation images."""
    if not path.is_file():
        raise DataError(f"there is no file {path}.", hint="real.json of the ReaL labels.")
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
        return [set(row) for row in table]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} does not contain ReaL labels.", got=f"{error}.", hint="real.json of the ReaL labels."
        ) from None


def _real_labels(table: list[set[int]], names: Sequence[str]) -> list[set[int]]:
    """The ReaL labels of the images, found by the number in ImageNet's file names."""
    labels = []
    for name in names:
        number = PurePosixPath(name).stem.rpartition("_")[2]
        if not number.isdecimal() or not 0 < int(number) <= len(table):
            raise DataError(
                "ReaL labels are for ImageNet's validation images.",
                got=f"{name}.",
                hint="files named ILSVRC2012_val_00000001.JPEG and so on.",
            )
        labels.append(table[int(number) - 1])
    return labels
