"""Translation: a sentence in another language, by an encoder-decoder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.contract import Model
from vitrail.data.prepare.text import TextPreparation
from vitrail.data.table import Source, Table
from vitrail.data.text.encoded import EncodedTable, sentence_pairs
from vitrail.data.text.parallel import open_parallel
from vitrail.data.text.tokenizer import Tokenizer
from vitrail.errors import DataError
from vitrail.metric.tokens import mean_per_token
from vitrail.metric.translation import score_translations
from vitrail.model.seq2seq import Seq2Seq
from vitrail.objective.translate import Translate
from vitrail.report.translation import write_translation_report
from vitrail.run.text_card import translation_card
from vitrail.run.text_model import TextModel
from vitrail.run.translation import translate_all
from vitrail.run.translation_rows import TRANSLATIONS, TranslationRow, write_translations
from vitrail.training.closing import answer_splits
from vitrail.training.evaluation import ProgressCallback
from vitrail.training.recipe.text.evaluation import ALL, TextEvaluation, answer_table, open_split, run_settings
from vitrail.training.recipe.text.finish import write_text_run
from vitrail.training.recipe.text.models import make_text_models
from vitrail.training.recipe.text.settings import TranslationSettings
from vitrail.training.recipe.text.tokens import (
    as_token_model,
    find_tokenizer,
    store_tokenizer,
    text_settings,
    tokenizer_of,
)
from vitrail.training.settings import CommonSettings
from vitrail.training.splits import Splits
from vitrail.training.task import Outcome, Task
from vitrail.training.view import View
from vitrail.training.world import World

NOUN = "sentence pairs"
SEARCH_COST = 8.0  # of beam search for a translation, in evaluations of a pair
MAX_TRANSLATED = 4000  # pairs of a split, at the end of a run
MIN_PAIRS = 10
model_factory = partial(make_text_models, "seq2seq")


def open_source(data: str | Path, settings: CommonSettings) -> Source:
    """Open a folder of aligned files, or a table with a column per language."""
    assert isinstance(settings, TranslationSettings)
    return open_parallel(data, source=settings.source, targets=settings.targets)


def make_splits(
    source: Source,
    settings: CommonSettings,
    view: View,
    world: World,
    *,
    path: Path | None = None,
    **_: Any,
) -> Splits:
    """Take the splits of the data, or hold out sentences; learn the tokenizer from the training pairs."""
    assert isinstance(source, Table)
    context, note = text_settings(settings).context, "The data has its own validation split."
    parts = take_splits(source, settings)
    if "train" not in parts:
        raise DataError("there is no training split.", got=f"the splits {', '.join(parts)}.", hint="a split train.")
    train = parts["train"]
    if "val" not in source.split_names:
        note = f"{len(parts['val']):,} training pairs were held out for validation."
    tokenizer = find_tokenizer(lambda: [text for item in train for text in item.content()[:2]], settings, world, path)
    tables = {name: sentence_pairs(part, tokenizer, context=context) for name, part in parts.items()}
    for name, table in tables.items():
        if table.num_dropped:
            left_out = f"{table.num_dropped:,} pairs of {name} are longer than {context} tokens and are left out."
            note += f" {left_out}"
            view.say(left_out)
    return Splits(tables["train"], tables["val"], tables.get("test"), note)


def take_splits(source: Table, settings: CommonSettings) -> dict[str, Table]:
    """The splits of the data; without a validation split, some training sentences are held out."""
    names = source.split_names
    parts = {name: source.split(name) for name in names} if names else {"train": source}
    if "val" not in parts and "train" in parts:
        parts["train"], parts["val"] = _hold_out(parts["train"], settings)
    return parts


def _hold_out(train: Table, settings: CommonSettings) -> tuple[Table, Table]:
    """Hold out random sentences, the same ones in every language."""
    keys = [name.rpartition(":")[2] for name in train.names]
    distinct = sorted(set(keys))
    if len(distinct) < MIN_PAIRS:
        raise DataError("there are too few sentences to hold any out.", got=f"{len(distinct)}.", hint="more sentences.")
    rng = np.random.default_rng(settings.seed)
    num = max(1, round(settings.val_share * len(distinct)))
    held_out = {distinct[index] for index in rng.permutation(len(distinct))[:num]}
    val = [row for row, key in enumerate(keys) if key in held_out]
    return train.only([row for row, key in enumerate(keys) if key not in held_out]), train.only(val)


def new_model(task: Task) -> Model:
    """Create the requested model, for the tokens of both languages."""
    tokenizer = store_tokenizer(task)
    return task.new_model(vocab=tokenizer.num_tokens, pad=tokenizer.pad, context=text_settings(task.settings).context)


def new_objective(task: Task, model: Model | None = None) -> Translate:
    """Create the loss function."""
    settings = task.settings
    assert isinstance(settings, TranslationSettings)
    return Translate(pad=tokenizer_of(task).pad, label_smoothing=settings.label_smoothing)


def preparation(task: Task, model: Model, *, training: bool) -> TextPreparation:
    """Pairs of sentences, padded."""
    return pair_preparation(model, tokenizer_of(task), training=training)


def pair_preparation(model: Model, tokenizer: Tokenizer, *, training: bool = False) -> TextPreparation:
    """Pairs of sentences, padded."""
    context = as_token_model(model).spec.context
    return TextPreparation(fields=("source", "target"), context=context, pad=tokenizer.pad, training=training)


def finish(task: Task, recipe: str, outcome: Outcome) -> dict[str, Any]:
    """Translate validation and test, write the files of the run, and return its result."""
    answers = answer_splits(task, outcome)
    settings, tokenizer = task.settings, tokenizer_of(task)
    assert isinstance(settings, TranslationSettings)
    tables = {"val": task.splits.val, "test": task.splits.test}
    scores: dict[str, Any] = {}
    rows: list[TranslationRow] = []
    for split, each in answers.items():
        whole = tables[split]
        assert isinstance(whole, EncodedTable)
        table = whole.only(spread(len(whole), MAX_TRANSLATED))
        translated = task.world.on_rank_zero(
            partial(
                translate_table,
                outcome.model,
                table,
                split,
                beam=settings.beam,
                progress=lambda done, total: task.view.progress("Translating", done, total),
            )
        )
        loss, _ = mean_per_token(each["loss"], each["units"])
        scores[split] = {
            **score_rows(translated, settings.targets),
            "loss": loss if np.isfinite(loss) else None,
            "dropped": whole.num_dropped,
        }
        rows += translated
    if task.world.is_rank_zero:
        write_translations(task.run / TRANSLATIONS, rows)
    return write_text_run(
        task,
        recipe,
        outcome,
        kind="translation",
        scores=scores,
        objective="translate",
        facts={
            "tokenizer": settings.tokenizer,
            "vocab": tokenizer.num_tokens,
            "source": settings.source,
            "targets": list(settings.targets),
        },
        card=translation_card,
    )


def answer_cost(splits: Splits) -> float:
    """What translating validation and test costs, in evaluations of a pair."""
    parts = [splits.val, *([] if splits.test is None else [splits.test])]
    return SEARCH_COST * sum(min(len(part), MAX_TRANSLATED) for part in parts)


def spread(num: int, most: int) -> list[int]:
    """At most so many of `num` rows, evenly spaced."""
    return [row * num // most for row in range(most)] if num > most else list(range(num))


def translate_table(
    model: Model, table: EncodedTable, split: str, *, beam: int, progress: ProgressCallback | None = None
) -> list[TranslationRow]:
    """Translate all sources of a table."""
    assert isinstance(model, Seq2Seq)
    model.eval()
    sources = [table.content(index)[0] for index in range(len(table))]
    translations = translate_all(model, table.tokenizer, sources, beam=beam, progress=progress)
    return [
        TranslationRow(split, name, pair.language, pair.source.partition(": ")[2], translation, pair.target)
        for name, pair, translation in zip(table.names, table.pairs or (), translations, strict=True)
    ]


def score_rows(rows: list[TranslationRow], targets: tuple[str, ...]) -> dict[str, Any]:
    """BLEU and chrF of the first target language, and those of each."""
    languages = {}
    for language in targets:
        chosen = [row for row in rows if row.language == language]
        if not chosen:
            continue
        score = score_translations([row.translation for row in chosen], [row.reference for row in chosen])
        languages[language] = {
            "bleu": score.bleu,
            "chrf": score.chrf,
            "n": score.n,
            "interval": list(score.interval),
            "signature": score.signature,
            "bleu_lowercase": score.bleu_lowercase,
            "signature_lowercase": score.signature_lowercase,
        }
    first = next(iter(languages.values()))
    return {**{name: first[name] for name in ("bleu", "chrf", "n", "interval")}, "languages": languages}


def evaluate(
    opened: TextModel, data: str | Path, *, split: str | None, batch_size: int, progress: ProgressCallback | None
) -> TextEvaluation:
    """Translate aligned sentences with a finished model, and score the translations."""
    settings = run_settings(opened)
    assert isinstance(settings, TranslationSettings)
    source, chosen, learned_from = open_split(
        opened, data, split, open_source=open_source, split_names=lambda table: tuple(take_splits(table, settings))
    )
    part = source if chosen == ALL else take_splits(source, settings)[chosen]
    table = sentence_pairs(part, opened.tokenizer, context=opened.context)
    answers = answer_table(
        opened,
        table,
        pair_preparation(opened.model, opened.tokenizer),
        Translate(pad=opened.tokenizer.pad),
        batch_size=batch_size,
    )
    loss, _ = mean_per_token(answers["loss"], answers["units"])
    rows = translate_table(opened.model, table, chosen, beam=settings.beam, progress=progress)
    scores = {**score_rows(rows, settings.targets), "loss": loss, "dropped": table.num_dropped}
    return TextEvaluation(kind="translation", split=chosen, scores=scores, learned_from=learned_from)


def write_report(path: Path, source: Source, *, model: Model | None = None) -> None:
    """Write the page of a run."""
    write_translation_report(path)
