"""Language modelling: predict each token from those before it, -sum log p(x_i | x_1 ... x_(i-1))."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail import contract
from vitrail.batch import Fields
from vitrail.metric.score import Metric, Score
from vitrail.metric.tokens import losses_per_token, score_tokens

LOSS = Metric("loss", "nats per token", higher=False)


class NextToken(contract.Objective):
    """Cross-entropy of each next token; `pad` is the id of padding, which does not count."""

    METRIC = LOSS
    COMPARES = "loss per token"

    def __init__(self, *, pad: int = -1) -> None:
        super().__init__()
        self.pad = pad

    def units(self, fields: Fields) -> Float[Tensor, " B"]:
        """The number of predicted tokens."""
        return (fields["text"][:, 1:] != self.pad).sum(dim=1).float()

    def forward(self, model: nn.Module, fields: Fields) -> Float[Tensor, " B"]:
        return self.token_losses(model, fields["text"]).sum(dim=1)

    def token_losses(self, model: nn.Module, text: Int64[Tensor, "B N"]) -> Float[Tensor, "B n"]:
        """The loss of every token but the first; zero for padding."""
        logits = model(text[:, :-1]).float()
        losses = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), ignore_index=self.pad, reduction="none")
        return losses.view(len(text), -1)

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """The loss of each sample and the number of its predicted tokens."""
        return {"loss": self(model, fields), "units": self.units(fields)}

    def score(self, answers: Fields) -> Score:
        """Score by the mean loss per token."""
        return score_tokens(LOSS, answers)

    def sample_losses(self, answers: Fields) -> Float[Tensor, " n"]:
        """The mean loss of each sample."""
        return losses_per_token(answers)


Objective = NextToken
