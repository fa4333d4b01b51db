"""A finished run on text: its model and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from vitrail.contract import Model, TokenModel
from vitrail.data.text.tokenizer import FILE, Ids, Tokenizer, read_tokenizer
from vitrail.errors import DataError, RunError
from vitrail.run.artefact import load_network, open_run

TEXT_KINDS = {
    "language": "vitrail generate",
    "masked_language": "vitrail predict",
    "translation": "vitrail generate",
}
"""The kinds of runs on text, and the command that each is for."""


class TextModel(NamedTuple):
    """The model of a run on text, in evaluation mode."""

    path: Path
    kind: str
    model: TokenModel
    tokenizer: Tokenizer
    config: dict[str, Any]

    @property
    def context(self) -> int:
        """The number of tokens that the model sees at once."""
        return self.model.spec.context

    def batch_of_one(self, ids: Ids) -> Int64[Tensor, "1 N"]:
        """Token ids as the input of the model; a text that is too long is refused."""
        if len(ids) > self.context:
            raise DataError(
                "the text is longer than the model's context.",
                got=f"{len(ids):,} tokens, {self.context:,} fit.",
                hint="a shorter text.",
            )
        return torch.from_numpy(np.asarray(ids, dtype=np.int64))[None]


def load_text_model(
    path: str | Path, *, kinds: tuple[str, ...] = tuple(TEXT_KINDS), model: Model | None = None
) -> TextModel:
    """Load the model of a run on text, unless it is in memory already; a run of another kind is refused by name."""
    path = Path(path)
    config, _ = open_run(path)
    kind = str(config.get("kind", "classification"))
    if kind not in kinds:
        raise RunError(
            f"{path} is a run of another kind.",
            got=f"{kind.replace('_', ' ')}; this needs {' or '.join(each.replace('_', ' ') for each in kinds)}.",
            hint=f"{TEXT_KINDS[kind]} with this run." if kind in TEXT_KINDS else "vitrail predict with images.",
        )
    tokenizer = read_tokenizer(path / FILE)
    network = load_network(path, config) if model is None else model.cpu().eval()
    if not isinstance(network, TokenModel):
        raise RunError(f"{path} has no model of text.", got=f"{type(network).__name__}.", hint="another run.")
    vocab = network.spec.vocab
    if tokenizer.num_tokens > vocab:
        raise RunError(
            f"{path / FILE} does not fit the run's model.",
            got=f"{tokenizer.num_tokens:,} tokens, {vocab:,} in the model.",
            hint="the tokenizer.json that the run was trained with.",
        )
    return TextModel(path, kind, network, tokenizer, config)
