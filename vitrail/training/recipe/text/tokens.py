"""The tokenizer of a run: learned once, from the training text, and stored in the run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vitrail.contract import Model, TokenModel
from vitrail.data.text.encoded import EncodedTable
from vitrail.data.text.tokenizer import FILE, Tokenizer, learn_tokenizer, parse_tokenizer, read_tokenizer
from vitrail.errors import RunError
from vitrail.files import write_text
from vitrail.sums import write_sums
from vitrail.training.recipe.text.settings import TextSettings
from vitrail.training.settings import CommonSettings
from vitrail.training.task import Task
from vitrail.training.world import World


def text_settings(settings: CommonSettings) -> TextSettings:
    """The settings as what they are."""
    assert isinstance(settings, TextSettings), f"a recipe for text got {type(settings).__name__}"
    return settings


def as_token_model(model: Model) -> TokenModel:
    """Return the model as what it is."""
    assert isinstance(model, TokenModel), f"a recipe for text got a {type(model).__name__}"
    return model


def find_tokenizer(
    texts: Callable[[], Sequence[str]], settings: CommonSettings, world: World, run: Path | None
) -> Tokenizer:
    """The tokenizer of a run that was interrupted, or a new one, learned on rank 0."""
    chosen = text_settings(settings)

    def find() -> str:
        if run is not None and (run / FILE).is_file():
            return read_tokenizer(run / FILE).to_json()
        return learn_tokenizer(chosen.tokenizer, texts(), vocab=chosen.vocab, lowercase=chosen.lowercase).to_json()

    return parse_tokenizer(world.on_rank_zero(find))


def tokenizer_of(task: Task) -> Tokenizer:
    """The tokenizer that made the tokens of a task."""
    train = task.splits.train
    assert isinstance(train, EncodedTable)
    return train.tokenizer


def store_tokenizer(task: Task) -> Tokenizer:
    """Write tokenizer.json before anything is trained with it, unless it is there; return the tokenizer."""
    tokenizer = tokenizer_of(task)
    if task.world.is_rank_zero and not (task.run / FILE).is_file():
        text = tokenizer.to_json()
        write_sums(task.run, (), RunError, contents={FILE: text.encode("utf-8", "replace")})
        write_text(text, task.run / FILE, RunError)
    return tokenizer
