"""Retrieval between all modalities of a model: how often the nearest neighbour is the right one."""

from __future__ import annotations

from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.batch import Fields
from vitrail.calibration import Calibration
from vitrail.contract import Model, Objective
from vitrail.data.aligned import TEXT, AlignedTable, with_tokenizer
from vitrail.data.aligned_preparation import AlignedPreparation
from vitrail.data.loader import Loader, Policy
from vitrail.data.table import Source
from vitrail.errors import DataError
from vitrail.metric.interval import wilson_interval
from vitrail.metric.retrieval import BLOCK_ROWS, nearest
from vitrail.model.vatt import Spec, Vatt
from vitrail.objective.contrast import NO_TEXT, hash_texts
from vitrail.run.aligned_model import AlignedModel, prepare_parts
from vitrail.run.calibrate import calibrate
from vitrail.training.evaluation import Answers, ProgressCallback, infer
from vitrail.training.learner import Learner
from vitrail.training.splits import was_trained_on
from vitrail.training.task import Task
from vitrail.training.world import World

MAX_WORDS = 1000  # different texts that a calibration chooses from


class AlignedEvaluation(NamedTuple):
    """Retrieval in all directions on a data set."""

    split: str | None
    scores: dict[str, Any]
    learned_from: bool
    """Whether the run was trained on these samples."""
    skipped: tuple[str, ...] = ()
    """Samples that cannot be read, with the reason."""


class Embeddings(Objective):
    """Keeps the embeddings of every modality in every common space, labels, and hashes of texts."""

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """Embed all modalities."""
        assert isinstance(model, Vatt)
        found: Fields = {}
        for name in model.TAKES:
            x = fields[name]
            if name == TEXT:
                x = x if x.ndim == 2 else x[:, 0]
                found["hash"] = hash_texts(x, model.spec.pad)
            found |= {f"{name}/{level}": each.float() for level, each in model.embed(name, x).items()}
        return {**found, **{name: fields[name] for name in ("label",) if name in fields}}


def embed_table(task: Task, model: Model, table: Source) -> Answers:
    """The embeddings of all samples of a split."""
    return task.infer(model, table, "Embedding", Embeddings())


def evaluate_aligned(
    opened: AlignedModel,
    source: AlignedTable,
    *,
    split: str | None,
    batch_size: int,
    policy: Policy,
    progress: ProgressCallback | None,
) -> AlignedEvaluation:
    """Score a finished model in all directions on a data set."""
    missing = [name for name in opened.modalities if name not in source.modalities]
    if missing:
        raise DataError(
            f"{source.origin} has no {missing[0]}.",
            got=f"{' and '.join(source.modalities)}.",
            hint=f"a table with the columns {', '.join(opened.modalities)}.",
        )
    split = split or next((name for name in ("test", "val") if name in source.split_names), None)
    learned_from = split in {None, "train"} and was_trained_on(opened.path, source)
    table = source if split is None else source.split(split)
    assert isinstance(table, AlignedTable)
    prepare = AlignedPreparation(parts=prepare_parts(opened.inputs), tokenizer=opened.tokenizer, context=opened.context)
    loader = Loader(
        source=with_tokenizer(table, opened.tokenizer), prepare=prepare, batch_size=batch_size, policy=policy
    )
    answers = infer(Learner(opened.model, Embeddings()), loader, World(), progress=progress)
    if not answers.num:
        raise DataError("no sample could be read.", got=f"{len(loader.skipped)} unreadable.", hint="other data.")
    skipped = tuple(f"{finding.path}: {finding.detail}" for finding in loader.skipped)
    return AlignedEvaluation(split, score_directions(opened.model.spec, answers), learned_from, skipped)


def score_directions(spec: Spec, answers: Answers) -> dict[str, Any]:
    """Recall at 1 from each modality to each other, with its interval and what chance would give."""
    directions: list[dict[str, Any]] = []
    everyone = torch.ones(answers.num, dtype=torch.bool)
    real = {TEXT: answers["hash"] != NO_TEXT} if TEXT in spec.takes else {}
    for one, other in permutations(spec.takes, 2):
        level = spec.level_between(one, other)
        groups = _groups(answers, with_text=TEXT in (one, other))
        shown = real.get(other, everyone)
        if other == TEXT:  # each text once, however many samples have it
            shown = shown & _first_of_each(answers["hash"])
        asked = real.get(one, everyone) & torch.isin(groups, groups[shown])
        if one == TEXT:
            asked = asked & _first_of_each(answers["hash"])
        queries, candidates = answers[f"{one}/{level}"][asked], answers[f"{other}/{level}"][shown]
        blocks = [
            nearest(block, candidates, 1).indices[:, 0] for block in torch.split(queries, BLOCK_ROWS) if len(block)
        ]
        found = groups[shown][torch.cat(blocks)] if blocks else groups[:0]
        num, num_hits = len(queries), int((found == groups[asked]).sum())
        directions.append(
            {
                "from": one,
                "to": other,
                "recall": num_hits / max(1, num),
                "interval": list(wilson_interval(num_hits, num)) if num else [0.0, 1.0],
                "chance": _random_recall(groups, shown, asked),
                "n": num,
            }
        )
    recall = sum(each["recall"] for each in directions) / len(directions)
    intervals = [each["interval"] for each in directions]
    interval = [sum(each[side] for each in intervals) / len(intervals) for side in (0, 1)]
    return {"recall": recall, "n": answers.num, "interval": interval, "directions": directions}


def _groups(answers: Answers, *, with_text: bool) -> Tensor:
    """A number for each sample, the same for those that count as the same: by label, by text, or each its own."""
    if "label" in answers.fields:
        return answers["label"]
    return answers["hash"] if with_text else torch.arange(answers.num)


def _first_of_each(hashes: Tensor) -> Tensor:
    """Whether each text is the first of its kind."""
    _, numbers = torch.unique(hashes, return_inverse=True)
    order = numbers.argsort(stable=True)
    first = torch.ones(len(hashes), dtype=torch.bool)
    first[order[1:]] = numbers[order[1:]] != numbers[order[:-1]]
    return first


def _random_recall(groups: Tensor, shown: Tensor, asked: Tensor) -> float:
    """The expected recall of a random candidate."""
    candidates = groups[shown]
    if not len(candidates) or not bool(asked.any()):
        return 0.0
    numbers, counts = np.unique(candidates.numpy(), return_counts=True)
    share = dict(zip(numbers.tolist(), (counts / len(candidates)).tolist(), strict=True))
    return sum(share.get(number, 0.0) for number in groups[asked].tolist()) / int(asked.sum())


def fit_calibration(spec: Spec, answers: Answers, temperature: float) -> Calibration:
    """Fit what makes probabilities of similarities to texts, for `vitrail predict`; the identity without texts."""
    if TEXT not in spec.takes:
        return Calibration()
    level = spec.level_between(spec.anchor, TEXT)
    chosen = torch.nonzero(_first_of_each(answers["hash"]) & (answers["hash"] != NO_TEXT))[:MAX_WORDS, 0]
    groups = _groups(answers, with_text=True)
    members = groups[chosen]
    truth = (groups[:, None] == members).int()
    known = truth.any(dim=1)
    logits = answers[f"{spec.anchor}/{level}"] @ answers[f"{TEXT}/{level}"][chosen].T / temperature
    fitted = calibrate(logits[known], truth[known].argmax(dim=1))
    return fitted.override({"limit": None})  # it depends on the words, which users choose
