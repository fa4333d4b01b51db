"""Language modelling: the next token of a text, by a causal model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.contract import Model
from vitrail.data.prepare.text import TextPreparation
from vitrail.data.table import Source, Table
from vitrail.data.text.encoded import EncodedTable, windows
from vitrail.data.text.tokenizer import END, Tokenizer
from vitrail.errors import DataError
from vitrail.metric.tokens import bits, mean_per_token, normal_interval
from vitrail.objective.next_token import NextToken
from vitrail.report.language import write_language_report
from vitrail.run.text_card import language_card
from vitrail.run.text_model import TextModel, load_text_model
from vitrail.training.closing import answer_splits
from vitrail.training.evaluation import Answers, ProgressCallback
from vitrail.training.recipe.text.evaluation import TextEvaluation, answer_table, open_split, run_settings
from vitrail.training.recipe.text.finish import write_text_run
from vitrail.training.recipe.text.models import make_text_models
from vitrail.training.recipe.text.splits import corpus_split_names, corpus_texts, make_text_splits, open_text
from vitrail.training.recipe.text.tokens import as_token_model, store_tokenizer, text_settings, tokenizer_of
from vitrail.training.task import Outcome, Task, no_answer_cost

NOUN = "windows"
answer_cost = no_answer_cost
model_factory = partial(make_text_models, "language")
open_source = open_text


def encode(source: Table, documents: Sequence[str], tokenizer: Tokenizer, context: int) -> EncodedTable:
    """Windows of the tokens of all documents in a row, with [EOS] after each if there are several."""
    if len(documents) == 1:
        ids = tokenizer.encode(documents[0])
    else:
        end = np.array([tokenizer.special(END)])
        ids = np.concatenate([part for document in documents for part in (tokenizer.encode(document), end)])
    if len(ids) < 2:
        raise DataError("there is no text to predict.", got=f"{len(ids)} tokens.", hint="more text.")
    return windows(source, ids, tokenizer, context=context, num_characters=sum(map(len, documents)))


make_splits = partial(make_text_splits, encode=encode)


def new_model(task: Task) -> Model:
    """Create the requested model, for the tokens of the text."""
    tokenizer = store_tokenizer(task)
    context = text_settings(task.settings).context
    return task.new_model(vocab=tokenizer.num_tokens, pad=tokenizer.pad, context=context, causal=True)


def new_objective(task: Task, model: Model | None = None) -> NextToken:
    """Create the loss function."""
    return NextToken(pad=tokenizer_of(task).pad)


def preparation(task: Task, model: Model, *, training: bool) -> TextPreparation:
    """Windows of the model's context, random ones for training."""
    return window_preparation(model, tokenizer_of(task), training=training)


def window_preparation(model: Model, tokenizer: Tokenizer, *, training: bool = False) -> TextPreparation:
    """Windows of the model's context."""
    context = as_token_model(model).spec.context
    return TextPreparation(context=context, pad=tokenizer.pad, training=training, crops=True)


def finish(task: Task, recipe: str, outcome: Outcome) -> dict[str, Any]:
    """Test the model, write the files of the run, and return its result."""
    answers = answer_splits(task, outcome)
    tables = {"val": task.splits.val, "test": task.splits.test}
    return write_text_run(
        task,
        recipe,
        outcome,
        kind="language",
        scores={split: score_answers(each, tables[split]) for split, each in answers.items()},
        objective="next_token",
        facts={"tokenizer": text_settings(task.settings).tokenizer, "vocab": tokenizer_of(task).num_tokens},
        card=language_card,
    )


def score_answers(answers: Answers, table: Source | None) -> dict[str, Any]:
    """The score of a split, as in result.json: nats and bits per token, and bits per character of the text."""
    assert isinstance(table, EncodedTable)
    loss, error = mean_per_token(answers["loss"], answers["units"])
    num = int(answers["units"].sum().item())
    if not np.isfinite(loss):
        return {"loss": None, "bits": None, "bits_per_character": None, "n": num, "interval": None}
    interval = normal_interval(loss, error)
    return {
        "loss": loss,
        "bits": bits(loss),
        "bits_per_character": bits(answers["loss"].double().sum().item()) / table.num_characters
        if table.tokenizer.is_exact
        else None,
        "n": num,
        "interval": None if interval is None else list(interval),
    }


def evaluate(
    opened: TextModel, data: str | Path, *, split: str | None, batch_size: int, progress: ProgressCallback | None
) -> TextEvaluation:
    """Evaluate a finished model on text."""
    source, chosen, learned_from = open_split(
        opened, data, split, open_source=open_source, split_names=corpus_split_names
    )
    settings = run_settings(opened)
    table = encode(source, corpus_texts(source, chosen, settings.val_share), opened.tokenizer, opened.context)
    answers = answer_table(
        opened,
        table,
        window_preparation(opened.model, opened.tokenizer),
        NextToken(pad=opened.tokenizer.pad),
        batch_size=batch_size,
        progress=progress,
    )
    return TextEvaluation(
        kind="language", split=chosen, scores=score_answers(answers, table), learned_from=learned_from
    )


def write_report(path: Path, source: Source, *, model: Model | None = None) -> None:
    """Write the page of a run."""
    assert isinstance(source, Table)
    opened = load_text_model(path, model=model)
    texts = corpus_texts(source, "val", run_settings(opened).val_share)
    write_language_report(opened, encode(source, texts, opened.tokenizer, opened.context))
