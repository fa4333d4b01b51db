"""Masked language modelling: masked tokens of a line, by a model that sees both sides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.calibration import Calibration
from vitrail.contract import Model
from vitrail.data.prepare.text import MASKED_RATE, Masking, TextPreparation
from vitrail.data.table import Source, Table
from vitrail.data.text.encoded import EncodedTable, lines
from vitrail.data.text.tokenizer import MASK, UNKNOWN, Tokenizer
from vitrail.errors import DataError
from vitrail.metric.ngram import EDGE, NeighbourCounts
from vitrail.metric.tokens import bits, fraction_interval, mean_per_token, normal_interval
from vitrail.objective.masked_tokens import MaskedTokens
from vitrail.report.masked_language import write_masked_report
from vitrail.run.calibrate import calibrate, write_calibration
from vitrail.run.text_card import masked_card
from vitrail.run.text_model import TextModel, load_text_model
from vitrail.training.closing import answer_splits
from vitrail.training.evaluation import Answers, ProgressCallback
from vitrail.training.recipe.text.evaluation import TextEvaluation, answer_table, open_split, run_settings
from vitrail.training.recipe.text.finish import write_text_run
from vitrail.training.recipe.text.models import make_text_models
from vitrail.training.recipe.text.splits import corpus_split_names, corpus_texts, make_text_splits, open_text
from vitrail.training.recipe.text.tokens import as_token_model, store_tokenizer, text_settings, tokenizer_of
from vitrail.training.task import Outcome, Task, no_answer_cost

NOUN = "lines"
answer_cost = no_answer_cost
MAX_CALIBRATION = 2000  # masked tokens
MAX_COUNTED = 100_000  # lines that the baselines are counted on
model_factory = partial(make_text_models, "language")
open_source = open_text


def encode(source: Table, documents: Sequence[str], tokenizer: Tokenizer, context: int) -> EncodedTable:
    """One item per line; a text without any known token is refused."""
    table = lines(source, documents, tokenizer, context)
    unknown = tokenizer.special(UNKNOWN)
    if not any(bool((table.content(index) != unknown).any()) for index in range(len(table))):
        raise DataError("there is no known word to mask.", got=f"{len(table):,} lines of [UNK].", hint="other text.")
    return table


make_splits = partial(make_text_splits, encode=encode)


def new_model(task: Task) -> Model:
    """Create the requested model, for the tokens of the text."""
    tokenizer = store_tokenizer(task)
    context = text_settings(task.settings).context
    return task.new_model(vocab=tokenizer.num_tokens, pad=tokenizer.pad, context=context, causal=False)


def new_objective(task: Task, model: Model | None = None) -> MaskedTokens:
    """Create the loss function."""
    return MaskedTokens(pad=tokenizer_of(task).pad)


def preparation(task: Task, model: Model, *, training: bool) -> TextPreparation:
    """Lines with masked tokens, random ones for training."""
    return line_preparation(model, tokenizer_of(task), training=training)


def line_preparation(model: Model, tokenizer: Tokenizer, *, training: bool = False) -> TextPreparation:
    """Lines with masked tokens."""
    context = as_token_model(model).spec.context
    unknown = tokenizer.special(UNKNOWN)
    masking = Masking(mask=tokenizer.special(MASK), vocab=min(tokenizer.special_ids), unknown=unknown)
    return TextPreparation(
        fields=("text", "target"), context=context, pad=tokenizer.pad, training=training, masking=masking
    )


def finish(task: Task, recipe: str, outcome: Outcome) -> dict[str, Any]:
    """Test and calibrate the model, write the files of the run, and return its result."""
    answers = answer_splits(task, outcome)
    tables = {"val": task.splits.val, "test": task.splits.test}
    tokenizer, train = tokenizer_of(task), task.splits.train
    assert isinstance(train, EncodedTable)
    prepare = line_preparation(outcome.model, tokenizer)
    counts = NeighbourCounts(train.content(index) for index in range(min(len(train), MAX_COUNTED)))
    scores: dict[str, Any] = {}
    for split, each in answers.items():
        table = tables[split]
        assert isinstance(table, EncodedTable)
        scores[split] = {**score_answers(each), "baselines": score_baselines(counts, table, prepare, tokenizer)}
    assert isinstance(task.splits.val, EncodedTable)
    calibration = calibrate_model(outcome.model, task.splits.val, prepare)
    if task.world.is_rank_zero:
        write_calibration(task.run, calibration)
    return write_text_run(
        task,
        recipe,
        outcome,
        kind="masked_language",
        scores=scores,
        objective="masked_tokens",
        facts={
            "tokenizer": text_settings(task.settings).tokenizer,
            "vocab": tokenizer.num_tokens,
            "masked_rate": MASKED_RATE,
            "ece": [calibration.ece_before, calibration.ece_after],
        },
        card=masked_card,
    )


def score_answers(answers: Answers) -> dict[str, Any]:
    """The score of a split, as in result.json."""
    loss, error = mean_per_token(answers["loss"], answers["units"])
    accuracy, accuracy_error = mean_per_token(answers["correct"], answers["units"])
    num = int(answers["units"].sum().item())
    if not np.isfinite(loss):
        return {"accuracy": 0.0, "accuracy_interval": None, "loss": None, "bits": None, "n": num, "interval": None}
    return {
        "accuracy": accuracy,
        "accuracy_interval": list(fraction_interval(accuracy, accuracy_error, num)),
        "loss": loss,
        "bits": bits(loss),
        "n": num,
        "interval": _as_list(normal_interval(loss, error)),
    }


def _as_list(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def score_baselines(
    counts: NeighbourCounts, table: EncodedTable, prepare: TextPreparation, tokenizer: Tokenizer
) -> dict[str, Any]:
    """The accuracy of two baselines on the same masked tokens: the most frequent token, and the neighbours' counts."""
    read, mask = prepare.reader(table), tokenizer.special(MASK)
    unigram = counts.unigram()
    rows = []
    for item in table:
        text, target = read(item)
        hits = [0, 0]
        places = np.flatnonzero(target != prepare.pad)
        for place in places:
            left = EDGE if place == 0 else int(text[place - 1])
            right = EDGE if place == len(text) - 1 else int(text[place + 1])
            guess = counts.trigram(*(None if each == mask else each for each in (left, right)))
            hits[0] += int(unigram == target[place])
            hits[1] += int(guess == target[place])
        rows.append((*hits, len(places)))
    columns = torch.tensor(rows, dtype=torch.float64)
    found = {}
    for column, name in enumerate(("unigram", "trigram")):
        accuracy, error = mean_per_token(columns[:, column], columns[:, 2])
        interval = fraction_interval(accuracy, error, int(columns[:, 2].sum().item()))
        found[name] = {"accuracy": accuracy, "interval": list(interval)}
    return found


@torch.inference_mode()
def calibrate_model(model: Model, table: EncodedTable, prepare: TextPreparation) -> Calibration:
    """Fit the temperature on the first masked tokens of the validation split."""
    read = prepare.reader(table)
    first_special = min(table.tokenizer.special_ids)
    rows: list[torch.Tensor] = []
    labels: list[int] = []
    device = next(model.eval().parameters()).device
    for item in table:
        text, target = (torch.from_numpy(each) for each in read(item))
        masked = target != prepare.pad
        logits = model(text[None].to(device))[0].cpu()[masked].float()
        rows.append(logits[:, :first_special])  # as in `fill_mask`: special tokens are never behind a mask
        labels += target[masked].tolist()
        if len(labels) >= MAX_CALIBRATION:
            break
    return calibrate(torch.cat(rows), torch.tensor(labels))


def evaluate(
    opened: TextModel, data: str | Path, *, split: str | None, batch_size: int, progress: ProgressCallback | None
) -> TextEvaluation:
    """Evaluate a finished model on the lines of a text."""
    source, chosen, learned_from = open_split(
        opened, data, split, open_source=open_source, split_names=corpus_split_names
    )
    texts = corpus_texts(source, chosen, run_settings(opened).val_share)
    table = encode(source, texts, opened.tokenizer, opened.context)
    answers = answer_table(
        opened,
        table,
        line_preparation(opened.model, opened.tokenizer),
        MaskedTokens(pad=opened.tokenizer.pad),
        batch_size=batch_size,
        progress=progress,
    )
    return TextEvaluation(
        kind="masked_language", split=chosen, scores=score_answers(answers), learned_from=learned_from
    )


def write_report(path: Path, source: Source, *, model: Model | None = None) -> None:
    """Write the page of a run."""
    assert isinstance(source, Table)
    opened = load_text_model(path, model=model)
    texts = corpus_texts(source, "val", run_settings(opened).val_share)
    val = lines(source, texts, opened.tokenizer, opened.context)
    write_masked_report(opened, val, line_preparation(opened.model, opened.tokenizer))
