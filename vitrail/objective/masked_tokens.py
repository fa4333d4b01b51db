"""Masked language modelling: predict masked tokens from the others (BERT, arXiv 1810.04805, section 3.1).

The preparation of the data hides the tokens (`data/prepare/text.py`), so that the same ones are hidden in each
evaluation, for any number of processes.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import contract
from vitrail.batch import Fields
from vitrail.metric.score import Metric, Score
from vitrail.metric.tokens import losses_per_token, score_tokens

ACCURACY = Metric("accuracy", "accuracy on masked tokens", is_fraction=True)


class MaskedTokens(contract.Objective):
    """Cross-entropy of the masked tokens; `target` has their ids, and `pad` everywhere else."""

    READS = ("target",)
    METRIC = ACCURACY
    COMPARES = "loss per masked token"

    def __init__(self, *, pad: int = 0) -> None:
        super().__init__()
        self.pad = pad

    def units(self, fields: Fields) -> Float[Tensor, " B"]:
        """The number of masked tokens."""
        return (fields["target"] != self.pad).sum(dim=1).float()

    def forward(self, model: nn.Module, fields: Fields) -> Float[Tensor, " B"]:
        losses, _ = self.compare(model, fields)
        return losses

    def compare(self, model: nn.Module, fields: Fields) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """The loss of each sample, and how many of its masked tokens are predicted correctly."""
        target = fields["target"]
        hidden = target != self.pad
        assert isinstance(model, contract.TokenModel)
        encoded = model.encode(model.tokenize(fields["text"])).x
        logits = model.logits(encoded[hidden]).float()  # of masked tokens only: the vocabulary is large
        rows = hidden.nonzero()[:, 0]
        zeros = logits.new_zeros(len(target))
        losses = zeros.index_add(0, rows, F.cross_entropy(logits, target[hidden], reduction="none"))
        correct = zeros.index_add(0, rows, (logits.argmax(dim=1) == target[hidden]).float())
        return losses, correct

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """The loss of each sample, the number of its masked tokens, and how many are predicted correctly."""
        losses, correct = self.compare(model, fields)
        return {"loss": losses, "correct": correct, "units": self.units(fields)}

    def score(self, answers: Fields) -> Score:
        """Score by the accuracy on masked tokens."""
        return score_tokens(ACCURACY, answers)

    def sample_losses(self, answers: Fields) -> Float[Tensor, " n"]:
        """The mean loss of each sample."""
        return losses_per_token(answers)


Objective = MaskedTokens
